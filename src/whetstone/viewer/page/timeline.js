// Timeline: steps in sequence, and the waiting times of each episode of one step.
import { ask, save } from "/page/api.js";
import { duration, el, fill, svg, whole } from "/page/dom.js";
import { go, state } from "/page/state.js";

const KINDS = { queue: "waiting for the engine", engine: "engine", tool: "tool", environment: "environment",
  rollout: "sampling", update: "update" };
let root = null;

export function mount(main) {
  root = el("div");
  fill(main, el("h1", {}, "Timeline"), root);
}

export const live = (context, fresh) => (fresh.has(context.at.name) && !state.step ? update(context) : null);

export async function update(context) {
  const { steps, of } = await ask(`runs/${context.at.i}/steps`);
  if (!steps.length) {
    fill(root, el("p", { class: "soft" }, "No step is on record yet."));
    return;
  }
  const sampled = steps.filter((each) => each.stage === "reinforcement");
  const at = Number(state.step) || sampled.at(-1)?.step;
  const episodes = at ? (await ask(`runs/${context.at.i}/episodes`, { step: at })).episodes : [];
  fill(root, summary(steps), legend(), el("h2", {}, `Steps${of > steps.length ? ` (the last ${steps.length})` : ""}`),
    stepBars(steps, at), at && el("h2", {}, `Episodes of step ${at}`),
    at && (episodes.length ? lanes(episodes) : el("p", { class: "soft" }, "None is on record.")),
    el("p", { class: "soft" }, "The start of an episode is not recorded: each starts here with the sampling of its step."),
    at && exporting(context, at));
}

function summary(steps) {
  const sum = (key) => steps.reduce((total, each) => total + (each[key] ?? 0), 0);
  const [rollout, up] = [sum("rollout"), sum("update")];
  const sampled = steps.filter((each) => each.engine !== null); // experts play without an engine
  const played = sampled.reduce((total, each) => total + each.rollout, 0);
  const share = (part) => `${Math.round((100 * part) / (rollout + up || 1))} %`;
  return el("p", {}, `${whole(steps.length)} steps took ${duration(rollout + up)}: ${share(rollout)} sampling, `
    + `${share(up)} updates.${!played ? ""
      : ` While the policy sampled, the engine worked ${Math.round((100 * sum("engine")) / played)} % of the time.`}`);
}

const legend = () => el("p", { class: "legend" }, Object.entries(KINDS).map(([kind, name]) =>
  el("span", {}, el("i", { class: `dot kind-${kind}` }), ` ${name} `)));

function stepBars(steps, at) {
  const shown = steps.slice(-160);
  const most = Math.max(...shown.map((each) => each.rollout + each.update)) || 1;
  const [width, height] = [900, 150];
  const each = width / shown.length;
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Seconds of ${shown.length} steps; the longest took ${duration(most)}` });
  shown.forEach((step, i) => {
    const tall = (seconds) => (seconds / most) * (height - 4);
    const bar = (kind, from, seconds) => plot.append(svg("rect", { x: i * each, width: Math.max(0.5, each - 1),
      y: height - tall(from + seconds), height: tall(seconds), class: `kind-${kind}` }));
    const busy = Math.min(step.engine ?? 0, step.rollout);
    bar("engine", 0, busy);
    bar("rollout", busy, step.rollout - busy);
    bar("update", step.rollout, step.update);
    const hit = svg("rect", { x: i * each, width: each, y: 0, height,
      class: step.step === at && step.stage === "reinforcement" ? "hit at" : "hit" });
    const said = svg("title");
    said.textContent = `${step.stage} ${step.step}: sampling ${duration(step.rollout)}`
      + `${step.engine === null ? "" : ` (engine ${duration(step.engine)})`}, update ${duration(step.update)}`;
    hit.append(said);
    if (step.stage === "reinforcement") hit.addEventListener("click", () => go({ step: step.step }));
    plot.append(hit);
  });
  const choose = el("input", { id: "step", type: "number", min: 1, value: at ?? "", on: {
    change: () => go({ step: choose.value }) } });
  return el("div", {}, el("figure", { class: "wide" }, plot),
    el("p", {}, el("label", { htmlFor: "step" }, "episodes of step "), choose));
}

function lanes(episodes) {
  const end = Math.max(...episodes.map((each) => each.spans.reduce((last, s) => Math.max(last, s.start + s.seconds), 0)));
  const row = Math.max(3, Math.min(14, 600 / episodes.length));
  const [width, height] = [900, row * episodes.length];
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "lanes",
    "aria-label": `${episodes.length} episodes in ${duration(end)}` });
  episodes.forEach((episode, i) => {
    for (const span of episode.spans) {
      const bar = svg("rect", { x: (span.start / end) * width, y: i * row, height: row - 1,
        width: Math.max(0.4, (span.seconds / end) * width), class: `kind-${span.kind}` });
      const said = svg("title");
      said.textContent = `${episode.id}, turn ${span.turn + 1}: ${span.name || KINDS[span.kind]} ${duration(span.seconds)}`;
      bar.append(said);
      plot.append(bar);
    }
  });
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    const episode = episodes[Math.floor(((event.clientY - box.top) / box.height) * episodes.length)];
    if (episode) go({ tab: "trajectories", t: episode.id, part_of: "training" });
  });
  return el("figure", { class: "wide" }, plot, el("figcaption", { class: "soft" },
    `${episodes.length} episodes, ${duration(end)} from left to right; a click opens one`));
}

function exporting(context, at) {
  const note = el("span", { role: "status" });
  const write = async () => {
    note.textContent = " writing …";
    try {
      const content = await ask(`runs/${context.at.i}/trace`, { first: Math.max(1, at - 4), last: at });
      save(`${context.at.name.replaceAll("/", "-")}-trace.json`, content);
      note.textContent = ` ${whole(content.traceEvents.length)} events; open it at ui.perfetto.dev or chrome://tracing`;
    } catch (error) {
      note.textContent = ` ${error.message}`;
    }
  };
  return el("p", {}, el("button", { type: "button", on: { click: write } }, "Save for Perfetto"),
    el("span", { class: "soft" }, ` all steps, and the episodes of steps ${Math.max(1, at - 4)} to ${at}`), note);
}
