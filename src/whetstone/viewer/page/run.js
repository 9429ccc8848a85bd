// Does the run go well? A sentence, what alarms, and the curves.
import { ask } from "/page/api.js";
import { chart } from "/page/chart.js";
import { ago, details, duration, el, fill, number, percent, table, whole } from "/page/dom.js";
import { grouped, isShare, meaning, title } from "/page/metrics.js";
import { follow, go, link, state } from "/page/state.js";

const WORDS = {
  learning: ["good", "▲", "It learns"], learned: ["good", "✓", "It learned"], flat: ["plain", "■", "No clear change"],
  falling: ["bad", "▼", "It gets worse"], worse: ["bad", "▼", "Its last stage made it worse"], early: ["plain", "…", "Too early to judge"],
};
const STATES = { running: "Running", finished: "Finished", silent: "Silent", empty: "Nothing yet" };
const FOLDED = new Set(["Success by kind of task", "Endings and faults", "All others"]);
const opened = new Map();
const held = { overviews: new Map(), curves: new Map() };
let parts = {};

export function mount(main) {
  parts = Object.fromEntries(["head", "alarms", "held", "controls", "curves", "recipe"].map((name) => [name, el("div")]));
  fill(main, Object.values(parts));
  held.overviews.clear();
  held.curves.clear();
}

export async function update(context) {
  const wanted = [context.at, ...context.overlaid];
  await Promise.all(wanted.map(async (run) => {
    if (!held.overviews.has(run.name)) held.overviews.set(run.name, await ask(`runs/${run.i}/overview`));
    if (!held.curves.has(run.name)) held.curves.set(run.name, await ask(`runs/${run.i}/curves`));
  }));
  render(context);
}

export async function live(context, fresh) {
  for (const name of fresh) {
    held.overviews.delete(name);
    held.curves.delete(name);
  }
  await update(context);
}

function render(context) {
  const run = context.at;
  const told = held.overviews.get(run.name);
  fill(parts.head, head(run, told));
  fill(parts.alarms, alarms(told));
  fill(parts.held, heldOut(told));
  const stages = [...new Set(context.overlaid.flatMap((each) => Object.keys(held.curves.get(each.name))))];
  const stage = stages.includes(state.stage) ? state.stage
    : stages.includes("reinforcement") ? "reinforcement" : stages[stages.length - 1];
  drawControls(stages, stage);
  fill(parts.curves, stage ? curves(context, stage) : el("p", { class: "soft" }, "No step is on record yet."));
  if (!parts.recipe.contains(document.activeElement)) fill(parts.recipe, recipe(context));
}

function head(run, told) {
  const progress = told.progress;
  const [mood, sign, word] = WORDS[told.verdict.word] ?? WORDS.early;
  const share = progress.steps ? Math.min(1, progress.step / progress.steps) : null;
  const rows = held.curves.get(run.name)[progress.stage] ?? {};
  const last = (key) => rows[key]?.y.at(-1);
  const figure = (name, value, said) => value !== "–" && el("div", { class: "figure" }, el("dt", {}, name),
    el("dd", {}, value, said && el("small", {}, said)));
  const success = rows["episode/success"];
  const age = progress.age === null || progress.state === "finished" ? "" : `, last wrote ${ago(progress.age)}`;
  return [
    el("h1", {}, told.title),
    el("div", { class: `verdict ${mood}` },
      el("div", {}, el("p", { class: "word" }, el("span", { "aria-hidden": "true" }, `${sign} `), word),
        el("p", {}, told.verdict.said)),
      glance(run, rows)),
    el("p", { class: "progress" },
      el("span", { class: `pill state-${progress.state}` }, STATES[progress.state]),
      ` ${progress.stage} step ${whole(progress.step)}${progress.steps ? ` of ${whole(progress.steps)}` : ""}${age}`,
      progress.seconds ? `, ${duration(progress.seconds)} of training` : ""),
    progress.state === "silent" && el("p", {}, "The run is unfinished and writes nothing. If it stopped, ",
      el("code", {}, `whetstone train ${told.folder} --resume`), " continues it."),
    share !== null && progress.state !== "finished" && el("progress", { max: 1, value: share,
      "aria-label": `${progress.stage}: ${Math.round(100 * share)} %` }),
    el("dl", { class: "figures" },
      figure("success, last step", success ? percent(success.y.at(-1)) : "–",
        success?.low.length ? `95 %: ${(100 * success.low.at(-1)).toFixed(0)} to ${(100 * success.high.at(-1)).toFixed(0)} %` : ""),
      figure("reward", number(last("reward/mean"))),
      figure("turns", number(last("episode/turns"))),
      figure("tool calls", number(last("episode/tool_calls"))),
      figure("tokens per episode", number(last("episode/action_tokens"))),
      figure("entropy", number(last("policy/entropy")), "nats per token"),
      figure("failed episodes", last("episode/invalid_fraction") ? percent(last("episode/invalid_fraction")) : "–"),
      figure("tokens per second", number(last("throughput/tokens_per_second")))),
    told.remarks.length > 0 && el("details", { class: "remarks" },
      el("summary", {}, `${told.remarks.length} problems of its files`),
      el("ul", {}, told.remarks.map((said) => el("li", {}, said)))),
  ];
}

// The curve that determines the verdict, next to it.
function glance(run, rows) {
  const key = ["episode/success", "reward/mean", "loss/total"].find((each) => rows[each]?.x.length > 1);
  return key && el("figure", { class: "glance" }, el("figcaption", {}, title(key)),
    chart([{ ...rows[key], name: run.name, colour: "var(--c0)" }], { label: `${title(key)}, at a glance`, share: isShare(key),
      smooth: Number(state.smooth ?? 0.6) }));
}

function alarms(told) {
  const raised = new Set(told.alarms.map((alarm) => alarm.name));
  const earlier = Object.entries(told.stored_alarms).filter(([name]) => !raised.has(name));
  const past = earlier.length > 0 && el("p", { class: "soft" }, "Alarms during the run: ",
    earlier.map(([name, [first, last]]) => `${name} (steps ${first} to ${last})`).join(", "), ".");
  if (!told.alarms.length) return [el("p", { class: "calm" }, calm(told)), past];
  return [el("h2", {}, `Alarms (${told.alarms.length})`), el("div", { class: "alerts" }, told.alarms.map((alarm) =>
    el("section", { class: "alert" }, el("h3", {}, `⚠ ${sentence(alarm.name, "")}`), el("p", {}, sentence(alarm.message)),
      el("p", {}, el("b", {}, "Check: "), sentence(alarm.check), shown(alarm)),
      el("p", {}, el("b", {}, "Try: "), sentence(alarm.remedy)),
      el("p", { class: "soft" }, "Curves: ", alarm.keys.map((key, i) => [i ? ", " : "",
        el("a", { href: `#${key}`, on: { click: (event) => jump(event, key) } }, title(key))]))))), past];
}

// Without an alarm. A run whose last stage did not become better gets no check mark.
function calm(told) {
  if (told.verdict.word === "early" || !told.progress.stages.includes("reinforcement")) {
    return "Most alarms need 4 to 15 steps of reinforcement.";
  }
  if (told.verdict.word === "worse") {
    return "▼ No alarm in the metrics, but the last stage ended below its start: see the stages above.";
  }
  const mark = ["learned", "learning"].includes(told.verdict.word) ? "✓ " : "";
  return `${mark}No alarm: success, reward, entropy, lengths, contexts, mismatch, gradients and engine were compared.`;
}

const sentence = (said, end = ".") => said[0].toUpperCase() + said.slice(1) + (said.endsWith("?") ? "" : end);

const SHOWN = {
  "reward hacking": { outcome: "unsolved", sort: "reward" }, "failing episodes": { outcome: "unscored" },
  "length drift": { sort: "tokens" }, "entropy collapse": { outcome: "unsolved" },
};

function shown({ name }) {
  return SHOWN[name] && [" ", el("a", { href: link({ tab: "trajectories", part: "training", ...SHOWN[name] }),
    on: { click: follow } }, "Show them")];
}

function jump(event, key) {
  event.preventDefault();
  for (const folded of parts.curves.querySelectorAll("details")) {
    if (folded.dataset.keys.split(" ").includes(key)) folded.open = true;
  }
  requestAnimationFrame(() => {
    const found = document.getElementById(`curve-${key}`);
    found?.scrollIntoView({ block: "center" });
    found?.focus();
  });
}

function heldOut(told) {
  if (!told.evaluations.length) return [];
  const rows = told.evaluations.map((each) => [each.step === null ? each.name : `${each.stage}, step ${each.step}`,
    el("span", { class: "barred" }, el("meter", { min: 0, max: 1, value: each.success, "aria-hidden": "true" }),
      el("b", {}, percent(each.success))),
    each.interval ? `${percent(each.interval[0])} to ${percent(each.interval[1])}` : "–", whole(each.episodes),
    number(each.reward), number(each.turns), number(each.tool_calls), number(each.action_tokens)]);
  const members = told.evaluations.flatMap((each) => Object.entries(each.members ?? {}).map(([name, own]) =>
    [each.step === null ? each.name : `${each.stage}, step ${each.step}`, name, own.seat,
      own.success === null ? "–" : percent(own.success),
      own.success === null ? "–" : `${percent(own.interval[0])} to ${percent(own.interval[1])}`,
      whole(own.episodes), number(own.reward)]));
  const byMember = members.length > 0 ? table(["when", "member", "seat", "success", "95 % interval", "episodes", "reward"],
    members, "Evaluations by member; scripts play the other seats") : null;
  return [el("h2", {}, "On held-out tasks"),
    table(["when", "success", "95 % interval", "episodes", "reward", "turns", "calls", "tokens"], rows,
      "Evaluations on held-out tasks"), ...(byMember ? [byMember] : [])];
}

function drawControls(stages, stage) {
  if (parts.controls.contains(document.activeElement)) return;
  const smooth = state.smooth ?? "0.6";
  const choose = el("select", { id: "stage", on: { change: () => go({ stage: choose.value }) } },
    stages.map((each) => el("option", { value: each, selected: each === stage }, each)));
  const said = el("output", {}, smooth);
  const slide = el("input", { id: "smooth", type: "range", min: 0, max: 0.98, step: 0.02, value: smooth, on: {
    input: () => { said.value = slide.value; }, change: () => go({ smooth: slide.value }, { replace: true }) } });
  fill(parts.controls, stages.length > 0 && el("h2", {}, "Curves"), stages.length > 0 && el("div", { class: "controls" },
    el("label", { htmlFor: "stage" }, "stage "), choose, el("label", { htmlFor: "smooth" }, "smoothing "), slide, said));
}

// A run has more curves than fit on a screen; those below it are rendered when they scroll near.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    entry.target.replaceWith(entry.target.make());
  }
}, { rootMargin: "600px" });

function whenSeen(make) {
  const place = el("div", { class: "chart waiting" });
  place.make = make;
  seen.observe(place);
  return place;
}

function curves({ overlaid }, stage) {
  const smooth = Number(state.smooth ?? 0.6);
  const of = (run, key) => held.curves.get(run.name)[stage]?.[key];
  const keys = [...new Set(overlaid.flatMap((run) => Object.keys(held.curves.get(run.name)[stage] ?? {})))];
  const moves = keys.filter((key) => overlaid.some((run) => of(run, key)?.y.some((y) => y !== 0)));
  const still = keys.length - moves.length;
  const made = (key) => el("figure", { id: `curve-${key}`, tabIndex: -1 },
    el("figcaption", {}, el("b", {}, title(key)), " ", el("code", {}, key), el("span", { class: "soft" }, meaning(key))),
    whenSeen(() => chart(overlaid.filter((run) => of(run, key)).map((run) => ({ ...of(run, key), name: run.name,
      colour: run.colour, points: key === "evaluation/success" })), { label: title(key), share: isShare(key), smooth })));
  const found = grouped(moves).map(([name, mine]) => {
    const node = details(`${name} (${mine.length})`, opened.get(name) ?? !FOLDED.has(name),
      () => el("div", { class: "grid" }, mine.map(made)));
    node.dataset.keys = mine.join(" ");
    node.addEventListener("toggle", () => opened.set(name, node.open));
    return node;
  });
  const legend = overlaid.length > 1 && el("p", { class: "legend" }, overlaid.map((run) =>
    el("span", {}, el("i", { class: "dot", style: { "--dot": run.colour } }), ` ${run.name} `)));
  return [legend, found, still > 0 && el("p", { class: "soft" }, `${still} numbers were 0 all along and are not drawn.`)];
}

function recipe({ all, overlaid, at }) {
  const told = held.overviews.get(at.name);
  const found = [details("Recipe, resolved", false, () => el("pre", { tabIndex: 0 }, told.recipe_text))];
  const others = overlaid.length > 1 ? overlaid.map((run) => [run.name, held.overviews.get(run.name).recipe]) : [];
  if (others.length) {
    const keys = [...new Set(others.flatMap(([, flat]) => Object.keys(flat)))].sort();
    const differ = keys.filter((key) => new Set(others.map(([, flat]) => flat[key])).size > 1);
    found.unshift(details(`What differs in the recipes (${differ.length})`, true, () => (differ.length
      ? table(["key", ...others.map(([name]) => name)], differ.map((key) => [el("code", {}, key),
        ...others.map(([, flat]) => flat[key] ?? "–")]), "Keys of the recipes that differ")
      : el("p", {}, "Nothing: the recipes are the same."))));
  }
  const changes = told.changes.length > 0 && [el("p", {}, "The recipe changed:"),
    el("ul", {}, told.changes.map((said) => el("li", {}, said)))];
  return [el("h2", {}, "Recipe"), changes, found, el("p", { class: "soft" }, "Folder ", el("code", {}, told.folder),
    all.length > 1 && [" · ", el("a", { href: link({ tab: "compare" }), on: { click: follow } }, "compare the runs")])];
}
