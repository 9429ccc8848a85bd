// Tool statistics: calls, outcomes and durations.
import { ask } from "/page/api.js";
import { chart, COLOURS } from "/page/chart.js";
import { duration, el, fill, percent, table, whole } from "/page/dom.js";
import { follow, link } from "/page/state.js";

let root = null;

export function mount(main) {
  root = el("div");
  fill(main, el("h1", {}, "Tools"), root);
}

export const live = (context, fresh) => (fresh.has(context.at.name) ? update(context) : null);

export async function update(context) {
  const found = await ask(`runs/${context.at.i}/tools`);
  if (!found.length) {
    fill(root, el("p", { class: "soft" }, "No tool was called in training yet."));
    return;
  }
  const rows = found.map((tool) => {
    const failed = tool.calls - (tool.outcomes.ok ?? 0);
    const others = Object.entries(tool.outcomes).filter(([name]) => name !== "ok");
    return [el("a", { href: link({ tab: "trajectories", ...(tool.named ? { tool: tool.name } : {
      outcome: Object.keys(tool.outcomes)[0] }) }), on: { click: follow } }, tool.name),
      whole(tool.calls), el("span", { class: failed ? "wrong" : "right" }, percent(failed / tool.calls)),
      others.map(([name, count]) => `${name.replaceAll("_", " ")} ${whole(count)}`).join(", ") || "–",
      tool.error || "–", tool.truncated ? percent(tool.truncated / tool.calls) : "–",
      duration(tool.seconds.median), duration(tool.seconds.p95), duration(tool.seconds.most)];
  });
  const most = found.filter((tool) => tool.by_step.length > 1).slice(0, COLOURS.length);
  const lines = (key) => most.map((tool, i) => ({ name: tool.name, x: tool.steps, y: tool[key], colour: COLOURS[i] }));
  fill(root, table(["tool", "calls", "not ok", "outcomes", "most frequent error", "cut", "median", "95 %", "longest"], rows,
    "Tools in training: calls, failures, latency"),
  el("p", { class: "legend" }, most.map((tool, i) => el("span", {},
    el("i", { class: "dot", style: { "--dot": COLOURS[i] } }), ` ${tool.name} `))),
  el("div", { class: "grid" },
    el("figure", {}, el("figcaption", {}, el("b", {}, "Calls per step")),
      chart(lines("by_step"), { label: "Calls per step", smooth: 0.5 })),
    el("figure", {}, el("figcaption", {}, el("b", {}, "Fraction that was not ok")),
      chart(lines("failed_by_step"), { label: "Fraction of calls that were not ok", share: true, smooth: 0.5 }))),
  el("p", { class: "soft" }, "Latency is of calls that ran, as the episode waited for them."));
}
