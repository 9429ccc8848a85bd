// Comparison of runs: results over cost.
import { ask } from "/page/api.js";
import { chart } from "/page/chart.js";
import { duration, el, fill, number, percent, table, whole } from "/page/dom.js";
import { follow, link, state } from "/page/state.js";

let root = null;
const OUTCOMES = { better: "✓ better", worse: "▼ worse", unclear: "cannot be distinguished", unknown: "unknown" };

export function mount(main) {
  root = el("div");
  fill(main, el("h1", {}, "Compare"), root);
}

export const live = (context) => update(context);

export async function update(context) {
  const { runs, comparison } = await ask("compare");
  const names = new Map(context.overlaid.map((run) => [run.name, run.colour]));
  const shown = runs.filter((run) => names.has(run.name));
  const share = (told) => (told && told.success !== null ? [el("b", {}, percent(told.success)), told.interval
    && el("small", {}, ` ${percent(told.interval[0])} to ${percent(told.interval[1])}`)] : "–");
  const rows = shown.map((run) => {
    const [first, last, stage] = [run.evaluations[0], run.evaluations.at(-1), run.results.at(-1)];
    return [[el("i", { class: "dot", style: { "--dot": names.get(run.name) } }), " ",
      el("a", { href: link({ tab: "run", run: run.name }), on: { click: follow } }, run.name)], run.state,
    share(first), share(stage?.before), stage || run.evaluations.length > 1 ? share(stage?.after ?? last) : "–",
    stage ? OUTCOMES[stage.outcome] : "–", number(last?.reward), number(last?.turns),
    number(last?.tool_calls), number(last?.action_tokens), whole(run.spent.episodes),
    whole(Math.round(run.spent.sampled_tokens)), duration(run.spent.seconds)];
  });
  const lines = shown.map((run) => ({ ...run.curve, name: run.name, colour: names.get(run.name) }));
  fill(root, comparison && contenders(comparison), table(["run", "state", "untrained", "start of last stage", "its end", "outcome", "reward", "turns", "calls",
    "tokens", "episodes", "sampled tokens", "time"], rows, "Runs side by side"),
  el("p", { class: "soft" }, "Success on held-out tasks with its 95 % interval; spent in reinforcement."),
  lines.some((line) => line.x.length) && el("figure", { class: "wide" },
    el("figcaption", {}, el("b", {}, "Success while sampling, against tokens sampled")),
    chart(lines, { label: "Success against sampled tokens", share: true, smooth: Number(state.smooth ?? 0.6),
      xLabel: "tokens", wide: true })),
  shown.length < 2 && el("p", {}, "One run is open. Name several to compare them: ",
    el("code", {}, "whetstone view RUN RUN"), ", or make a comparison with seeds and paired tests: ",
    el("code", {}, "whetstone compare RECIPE RECIPE"), "."));
}

function contenders(told) {
  const rows = told.contenders.map((row) => [row.name, el("b", {}, percent(row.mean)),
    (row.success ?? []).map((value) => percent(value)).join("  "), percent(row.before), percent(row.untrained), row.change ? OUTCOMES[row.change.outcome] : "–", number(row.reward),
    number(row.turns), number(row.tool_calls), whole(Math.round(row.spent?.sampled_tokens ?? 0)),
    Object.entries(row.failed ?? {}).map(([seed, why]) => `seed ${seed} failed: ${why}`).join("; ")]);
  const pairs = told.pairs.map((pair) => [`${pair.one} − ${pair.other}`, `${number(100 * pair.difference)} points`,
    pair.interval?.[0] === null ? "requires two seeds" : pair.interval?.map((x) => number(100 * x)).join(" to "),
    number(pair.p_seeds), number(pair.p_tasks), number(pair.effect)]);
  return [el("h2", {}, "Methods, over seeds"), told.sentence && el("p", {}, told.sentence), table(["contender", "success", "by seed", "start of last stage", "untrained", "outcome", "reward", "turns",
    "calls", "sampled tokens", "failed"], rows, "Contenders"),
  pairs.length > 0 && table(["pair", "difference", "95 % over seeds", "p, seeds", "p, tasks", "effect (h)"], pairs,
    "Pairs, by seed and task; p-values corrected after Holm"),
  el("h2", {}, "Runs")];
}
