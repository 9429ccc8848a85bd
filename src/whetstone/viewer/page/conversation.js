// One trajectory, or two side by side: messages, tool calls, tokens and credit.
import { ask } from "/page/api.js";
import { details, duration, el, fill, number, whole } from "/page/dom.js";
import { follow, go, link, state } from "/page/state.js";
import { drawTokens, MEASURES, rangeOf, tokensOf } from "/page/tokens.js";
import { solved } from "/page/trajectories.js";

const held = new Map(); // run, part and id → response of the server
const explained = new Map();
let redraw = () => {};
let rendered = "";
let wanted = 0;

async function get(context, id, part, whole = "") {
  const key = JSON.stringify([context.at.name, part, id]);
  if (!held.has(key) || whole) {
    if (held.size > 40) held.clear();
    held.set(key, await ask(`runs/${context.at.i}/trajectory`, { id, part, whole }));
  }
  return held.get(key);
}

export async function drawOne(parts, context, listed) {
  redraw = () => drawOne(parts, context, listed);
  const mine = ++wanted;
  document.body.classList.toggle("reading-one", Boolean(state.t));
  if (!state.t) {
    rendered = "";
    fill(parts.one, el("p", { class: "soft empty" }, "Choose a trajectory to read it: click, or j and k."));
    return;
  }
  const pairs = [[state.t, state.part_of || "training"]];
  if (state.t2) pairs.unshift([state.t2, state.part_2 || "training"]);
  const told = await Promise.all(pairs.map(([id, part]) => get(context, id, part)));
  if (mine !== wanted) return; // another was chosen, or it was closed, while this one was on its way
  const tokens = told.map((each) => each.turns.map((turn) => tokensOf(turn.action, turnCredit(context, each, turn))));
  const measure = MEASURES[state.colour] ? state.colour : "none";
  const range = rangeOf(tokens.flat(2), measure);
  fill(parts.one, el("div", { class: `pair of-${told.length}` }, told.map((each, i) =>
    drawTrajectory(context, each, tokens[i], { measure, range, listed, isPinned: told.length > 1 && i === 0 }))));
  if (rendered !== state.t) {
    rendered = state.t;
    parts.one.querySelector("h2")?.focus({ preventScroll: true });
    if (matchMedia("(max-width: 900px)").matches) parts.one.scrollIntoView();
  }
}

function turnCredit(context, told, turn) {
  const why = explained.get(JSON.stringify([context.at.name, told.row.id]));
  return why ? why.tokens.filter((token) => token.turn === told.turns.indexOf(turn)) : [];
}

export function nextColour() {
  const names = Object.keys(MEASURES);
  go({ colour: names[(names.indexOf(state.colour ?? "none") + 1) % names.length] }, { replace: true });
}

function drawTrajectory(context, told, tokens, { measure, range, isPinned }) {
  const row = told.row;
  const close = isPinned ? { t2: "", part_2: "" }
    : state.t2 ? { t: state.t2, part_of: state.part_2, t2: "", part_2: "" } : { t: "", part_of: "" };
  return el("article", { "aria-label": row.id },
    el("div", { class: "one-head" }, el("h2", { tabIndex: -1 }, row.task || row.id),
      el("button", { type: "button", on: { click: () => go(close) }, "aria-label": "Close (Esc)" }, "✕")),
    el("p", { class: "facts" }, solved(row.success), ` · reward ${number(row.reward)} · ${row.ended.replaceAll("_", " ")}`
      + ` · ${row.turns} turns · ${row.calls} calls · ${row.tokens} tokens · ${duration(row.seconds)}`
      + ` · ${row.part === "training" ? `step ${row.step ?? "–"}` : row.part}`
      + (row.version === null ? "" : ` · policy version ${row.version}`)),
    row.error && el("p", { class: "wrong" }, row.error),
    rewards(told),
    el("p", { class: "actions" },
      el("a", { href: link({ task: row.task, sort: "step", descending: "0", offset: "", text: "", part: "" }),
        on: { click: follow } }, "This task across training"),
      !state.t2 && el("button", { type: "button", on: { click: () => go({ t2: row.id, part_2: row.part }) } },
        "Compare with the next"),
      details("As JSON", false, () => el("pre", { tabIndex: 0 }, JSON.stringify(row, null, 1)))),
    colours(measure, range),
    el("div", { class: "talk" }, told.opening.map((message) => bubble(context, told, message)),
      told.turns.map((turn, i) => [turnHead(turn, i, tokens[i]), drawAction(context, told, turn, tokens[i], measure, range, i),
        turn.observation.map((message) => bubble(context, told, message))])),
    judgements(told),
    Object.keys(told.final).length > 0 && details("Result of the environment", false, () => pairs(told.final)),
    Object.keys(told.declared).length > 0 && details("Semantics of its tools", false, () => pairs(told.declared)),
    group(told), credit(context, told));
}

// Judgements with their reasons, and rejected answers of judges.
function judgements(told) {
  if (!told.judgements.length) return null;
  const refused = ({ said: { met } }) => met === false;
  const rows = told.judgements.toSorted((a, b) => refused(b) - refused(a)).map(({ question, said: { reason, ...rest } }) =>
    el("li", {}, el("b", {}, question), el("p", {}, Object.entries(rest).map(([name, value]) => el("span",
      { class: value === true ? "right" : value === false ? "wrong" : "" },
      `${name} ${value === true ? "yes" : value === false ? "no" : value} `))),
    reason && el("p", { class: "text" }, reason)));
  return details(`What judges said (${rows.length})`, true, () => el("ul", { class: "judgements" }, rows));
}

const pairs = (values) => el("dl", { class: "values" }, Object.entries(values).map(([name, value]) =>
  [el("dt", {}, name), el("dd", {}, String(value))]));

function rewards(told) {
  const parts = Object.entries(told.row.parts);
  const marks = [told.provenance, told.row.marks, told.removal && `removed: ${told.removal}`, told.greedy && "greedy",
    told.row.role && `role ${told.row.role}`].filter(Boolean).join(" · ");
  return [parts.length > 0 && el("dl", { class: "values" }, parts.map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, number(value))])), marks && el("p", { class: "soft" }, marks)];
}

function colours(measure, range) {
  const choose = el("select", { on: { change: () => go({ colour: choose.value }, { replace: true }) } },
    Object.entries(MEASURES).map(([key, [name]]) => el("option", { value: key, selected: key === measure }, name)));
  choose.id = `colour-${Math.random().toString(36).slice(2)}`;
  const computed = ["advantage", "ratio", "push"].includes(measure) && !range;
  const said = computed ? "not recorded: compute the credit below" : MEASURES[measure][2]
    + (range ? `; ${number(range[0])} to ${number(range[1])}` : measure === "none" ? "" : "; not recorded");
  return el("p", { class: "colours" }, el("label", { htmlFor: choose.id }, "color tokens by "), choose, " ",
    el("span", { class: "soft" }, said));
}

function turnHead(turn, i, tokens) {
  const [generation, queue, environment] = turn.seconds;
  const said = [turn.agent ? `turn ${i + 1}, ${turn.agent}` : `turn ${i + 1}`];
  if (turn.reward !== null) said.push(`reward ${number(turn.reward)}`);
  if (turn.credit !== null) said.push(`credit ${number(turn.credit)}`);
  const paid = tokens.map((token) => token.advantage).filter((value) => value !== undefined && value !== null);
  if (paid.length) said.push(`advantage ${number(paid.reduce((sum, value) => sum + value, 0) / paid.length)}`);
  for (const [name, value] of Object.entries(turn.signals)) if (value !== null) said.push(`${name} ${number(value)}`);
  if (turn.rewritten) said.push("context rewritten");
  if (turn.aside) said.push("for the rollout, not for the environment");
  const times = [["waiting", queue], ["engine", generation - queue], ["tools", environment]].filter(([, s]) => s > 0.0005);
  return el("p", { class: "turn" }, el("b", {}, said.join(" · ")), " ",
    el("span", { class: "soft" }, times.map(([name, s]) => `${name} ${duration(s)}`).join(", ")));
}

function drawAction(context, told, turn, tokens, measure, range, i) {
  const message = turn.message ?? { role: "assistant", parts: [], calls: [], malformed: [] };
  const outcome = turn.calls.map(([name, result, seconds, cut]) => el("li", {}, el("code", {}, name || "(unreadable)"),
    " ", el("span", { class: result === "ok" ? "right" : "wrong" }, result.replaceAll("_", " ")),
    seconds ? ` ${duration(seconds)}` : "", cut ? ", result cut" : ""));
  const shown = measure === "none" ? said(context, told, message)
    : [drawTokens(tokens, measure, range, `turn ${i + 1}, ${tokens.length} tokens`),
      details(`what it read in front (${whole(turn.context.texts.length + turn.context.left_out)} tokens)`, false, () =>
        [turn.context.left_out > 0 && el("p", { class: "soft" }, `${whole(turn.context.left_out)} tokens left out`),
          drawTokens(tokensOf(turn.context), "trained", null, "context")])];
  return el("div", { class: `bubble assistant ${measure === "none" ? "" : "in-tokens"}` },
    el("span", { class: "who" }, "assistant"), shown,
    message.malformed.map((wrong) => el("p", { class: "call wrong" }, `unreadable call: ${wrong}`)),
    outcome.length > 0 && el("ul", { class: "outcomes" }, outcome));
}

function bubble(context, told, message) {
  return el("div", { class: `bubble ${message.role}` }, el("span", { class: "who" }, message.role),
    said(context, told, message));
}

function said(context, told, message) {
  const found = message.parts.map((part) => (part.image
    ? el("img", { src: part.image, alt: `image of ${message.role}`, loading: "lazy" })
    : text(context, told, part)));
  const calls = message.calls.map((call) => el("p", { class: "call" }, el("b", {}, call.name), " ",
    el("code", {}, text(context, told, call))));
  return found.length + calls.length ? [found, calls] : el("span", { class: "soft" }, "(nothing)");
}

function text(context, told, part) {
  if (!part.left_out) return el("span", { class: "text" }, part.text);
  const all = async () => {
    await get(context, told.row.id, told.row.part, "1");
    redraw();
  };
  return el("span", { class: "text" }, part.text, el("button", { type: "button", class: "more", on: { click: all } },
    `… ${whole(part.left_out)} more characters …`), part.tail);
}

function group(told) {
  if (told.mates.length < 2) return null;
  const children = new Map();
  const ids = new Set(told.mates.map((mate) => mate.id));
  for (const mate of told.mates) {
    const parent = ids.has(mate.parent) ? mate.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), mate]);
  }
  const branch = (parent) => (children.get(parent) ?? []).map((mate) => el("li", {},
    el("a", { href: link({ t: mate.id, part_of: mate.part }), on: { click: follow },
      "aria-current": mate.id === told.row.id ? "true" : null }, mate.id.split("#").at(-1).padStart(1)),
    " ", solved(mate.success), ` reward ${number(mate.reward)}`,
    mate.parent && ` · parted behind turn ${mate.fork_turn}`, el("span", { class: "soft" }, ` · ${mate.excerpt.slice(0, 80)}`),
    children.has(mate.id) && el("ul", {}, branch(mate.id))));
  const state_ = told.group_state ? ` · ${told.group_state}` : "";
  return details(`All ${told.mates.length} of its group${state_}`, true, () => el("ul", { class: "tree" }, branch("")));
}

function credit(context, told) {
  if (told.row.part !== "training") return null;
  const key = JSON.stringify([context.at.name, told.row.id]);
  const why = explained.get(key);
  const command = `whetstone why ${context.at.name} '${told.row.id}'`;
  const note = el("span", { role: "status" });
  const compute = (weights) => async (event) => {
    event.target.disabled = true;
    note.textContent = weights ? " repeating the update …" : " computing …";
    try {
      explained.set(key, await ask(`runs/${context.at.i}/why`, { id: told.row.id, weights }));
      go({ colour: weights ? "ratio" : "advantage" }, { replace: true });
    } catch (error) {
      note.textContent = ` ${error.message}`;
      event.target.disabled = false;
    }
  };
  return details("Explanation of its credit", Boolean(why), () => [
    why ? el("table", {}, el("caption", {}, `used by update ${why.update}`), el("tbody", {}, why.chain.map((step) =>
      el("tr", {}, el("th", { scope: "row" }, step.what), el("td", {}, value(step.value)), el("td", {}, step.said)))))
      : el("p", {}, "Credit is recomputed from the record with the components of the recipe, which run for it."),
    el("p", {}, el("button", { type: "button", on: { click: compute("") } }, "Compute the credit"), " ",
      el("button", { type: "button", on: { click: compute("1") } }, "With ratios (repeats the update)"), note),
    el("p", { class: "soft" }, "In a terminal: ", el("code", {}, command))]);
}

const value = (given) => (Array.isArray(given) ? given.map((each) => number(each)).join(" ")
  : typeof given === "number" ? number(given, 5) : String(given ?? "none"));
