// Tokens, colored by a measure.
import { el, number } from "/page/dom.js";

// measure → [name, value of a token, meaning of the color]
export const MEASURES = {
  none: ["nothing", () => null, ""],
  trained: ["trained", (t) => (t.trained ? 1 : null), "blue: trained; plain: read only"],
  logprob: ["surprise (−log-prob)", (t) => (t.logprob === undefined ? null : t.logprob === null ? Infinity : -t.logprob),
    "the stronger, the less likely the token was when it was sampled"],
  entropy: ["entropy", (t) => t.entropy ?? null, "the stronger, the higher the entropy of the policy"],
  version: ["policy version", (t) => (t.version >= 0 ? t.version : null), "the stronger, the newer the policy"],
  advantage: ["advantage", (t) => t.advantage ?? null, "blue: made more likely; orange: made less likely"],
  ratio: ["ratio", (t) => (t.ratio ? Math.log(t.ratio) : null), "blue: became more likely in the update; orange: less likely"],
  push: ["push", (t) => (t.push === undefined ? null : -t.push), "blue: the update makes it more likely; orange: less likely"],
};
const SIGNED = new Set(["advantage", "ratio", "push"]);

// Tokens of a turn as objects; `explained` are those that `why` returned, in order.
export function tokensOf(columns, explained = []) {
  let k = 0;
  return columns.texts.map((text, i) => {
    const token = { text, trained: columns.trained[i], author: columns.authors[i], logprob: columns.logprobs?.[i],
      entropy: columns.entropies?.[i], version: columns.versions?.[i] };
    if (token.trained && explained[k]) {
      const last = explained[k].passes.at(-1) ?? {};
      Object.assign(token, { advantage: explained[k].advantage, ratio: last["policy/ratio"], push: last.push,
        clipped: last["policy/clip_fraction"] });
      k += 1;
    }
    return token;
  });
}

export function rangeOf(tokens, measure) {
  const values = tokens.map(MEASURES[measure][1]).filter((value) => value !== null && Number.isFinite(value));
  if (!values.length) return null;
  const most = Math.max(...values.map(Math.abs));
  if (SIGNED.has(measure)) return [-most, most];
  return measure === "version" ? [Math.min(...values) - 1, Math.max(...values)] : [0, most];
}

function about(token) {
  const said = [JSON.stringify(token.text), token.trained ? `${token.author}, trained` : token.author];
  for (const [name, value] of [["log-prob", token.logprob], ["entropy", token.entropy], ["version", token.version],
    ["advantage", token.advantage], ["ratio", token.ratio], ["push", token.push]]) {
    if (value !== undefined && value !== null && value !== -1) said.push(`${name} ${number(value, 4)}`);
  }
  if (token.clipped) said.push("clipped");
  return said.join(" · ");
}

export function drawTokens(tokens, measure, range, label) {
  const spans = tokens.map((token) => {
    const value = MEASURES[measure][1](token);
    const node = el("span", { class: token.trained ? "token" : "token read", title: about(token) },
      token.text === "" ? "∅" : token.text);
    if (value !== null && range) {
      const share = Math.min(1, Math.abs(SIGNED.has(measure) ? value / (range[1] || 1)
        : (value - range[0]) / (range[1] - range[0] || 1)));
      const hue = SIGNED.has(measure) && value < 0 ? "var(--minus)" : "var(--plus)";
      node.style.backgroundColor = `rgb(${hue} / ${(0.5 * (Number.isFinite(share) ? share : 1)).toFixed(3)})`;
    }
    return node;
  });
  return el("div", { class: "tokens", role: "group", "aria-label": label }, spans);
}
