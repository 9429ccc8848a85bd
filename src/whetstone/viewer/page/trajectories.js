// Which trajectories were there, and what happened in one of them?
import { ask } from "/page/api.js";
import { el, fill, number, percent, whole } from "/page/dom.js";
import { follow, go, link, state } from "/page/state.js";
import { drawOne, nextColour } from "/page/conversation.js";

const FILTERS = ["part", "from_step", "to_step", "task", "kind", "ended", "tool", "outcome", "mark", "measure", "above",
  "below", "text", "sort", "descending", "offset"];
const COLUMNS = [["step", "step"], ["task", "task"], ["reward", "reward"], ["success", "solved"], ["ended", "ended"],
  ["turns", "turns"], ["calls", "calls"], ["tokens", "tokens"], ["", "end of the last message"]];
const LIMIT = 50;
let parts = {};
let form = {};
let choices = null;
let of = "";
let listed = { rows: [], count: 0 };
let asked = new AbortController();
let typing = 0;

export function mount(main) {
  parts = { form: el("form", { class: "filters", "aria-label": "Filter", on: { submit: (e) => e.preventDefault() } }),
    said: el("p", { class: "said", role: "status" }), list: el("div", { class: "list" }),
    one: el("div", { class: "one" }) };
  fill(main, el("h1", { class: "hidden" }, "Trajectories"), parts.form, parts.said,
    el("div", { class: "split" }, parts.list, parts.one));
  choices = null;
  of = "";
}

const filters = () => Object.fromEntries(FILTERS.filter((key) => state[key]).map((key) => [key, state[key]]));

export async function update(context) {
  if (of !== context.at.name) {
    of = context.at.name;
    choices = null;
    form = {};
  }
  const listing = list(context);
  if (choices === null) {
    choices = await ask(`runs/${context.at.i}/choices`);
    drawForm();
  }
  if (!parts.form.contains(document.activeElement)) showFilters();
  await listing;
  await drawOne(parts, context, listed);
}

export async function live(context, fresh) {
  if (!fresh.has(context.at.name)) return;
  if (!parts.form.contains(document.activeElement)) choices = null;
  await list(context, true);
  if (choices === null) {
    choices = await ask(`runs/${context.at.i}/choices`);
    drawForm();
    showFilters();
  }
}

async function list(context, quietly = false) {
  asked.abort();
  asked = new AbortController();
  const started = performance.now();
  const given = { descending: "1", limit: LIMIT, ...filters() };
  try {
    listed = await ask(`runs/${context.at.i}/trajectories`, given, asked.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    fill(parts.list);
    fill(parts.said, error.message);
    throw error;
  }
  drawList(context);
  const took = quietly ? "" : ` · ${Math.round(performance.now() - started)} ms`;
  fill(parts.said, `${whole(listed.count)} trajectories · mean reward ${number(listed.reward)} · `
    + `${percent(listed.success)} solved`, el("span", { class: "soft" }, took));
  parts.said.dataset.count = listed.count;
}

function changed(changes) {
  go({ ...changes, offset: "" }, { replace: true });
}

function drawForm() {
  const later = (name) => (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => changed({ [name]: event.target.value }), 250);
  };
  const field = (name, label, node) => {
    node.id = `filter-${name}`;
    form[name] = node;
    return el("span", { class: "field" }, el("label", { htmlFor: node.id }, label), node);
  };
  const input = (name, label, props = {}) => field(name, label, el("input", { type: "text", ...props, on: {
    input: later(name) } }));
  const select = (name, label, options, any = "any") => field(name, label, el("select", { on: {
    change: (event) => changed({ [name]: event.target.value }) } },
  any && el("option", { value: "" }, any), options.map(([value, said]) => el("option", { value }, said))));
  const counted = (rows) => rows.map(([value, count]) => [value, `${value || "(none)"} (${whole(count)})`]);
  const measures = [["reward", "reward"], ...choices.components.map((name) => [`component:${name}`, name])];
  const [first, last] = choices.steps;
  fill(parts.form,
    input("text", "messages and calls", { type: "search", placeholder: "words" }),
    select("part", "of", counted(choices.part), "all"),
    input("from_step", "step from", { inputMode: "numeric", placeholder: first ?? "", size: 5 }),
    input("to_step", "to", { inputMode: "numeric", placeholder: last ?? "", size: 5 }),
    choices.kind.length > 1 && select("kind", "kind of task", counted(choices.kind)),
    select("outcome", "outcome", [["solved", "solved"], ["unsolved", "not solved"], ["unscored", "without a score"],
      ...choices.outcome.map(([value, count]) => [value, `a call: ${value} (${whole(count)})`])]),
    select("ended", "ended", counted(choices.ended)),
    choices.tool.length > 0 && select("tool", "tool", counted(choices.tool.filter(([name]) => name))),
    select("measure", "measure", measures, ""),
    input("above", "from", { inputMode: "decimal", size: 5 }), input("below", "to", { inputMode: "decimal", size: 5 }),
    input("task", "task id", { size: 14 }),
    select("sort", "sort by", [...COLUMNS.filter(([key]) => key && key !== "success"), ["seconds", "seconds"],
      ["version", "version"], ...measures.slice(1)], ""),
    el("button", { type: "button", on: {
      click: () => go(Object.fromEntries(FILTERS.map((key) => [key, ""]))) } }, "Clear"));
}

function showFilters() {
  const usual = { measure: "reward", sort: "step" };
  for (const [name, node] of Object.entries(form)) node.value = state[name] ?? usual[name] ?? "";
}

function drawList(context) {
  const sort = state.sort ?? "step";
  const down = state.descending !== "0";
  const sign = (key) => (key === sort ? (down ? " ↓" : " ↑") : "");
  const heads = COLUMNS.map(([key, name]) => el("th", { scope: "col", class: key,
    "aria-sort": key && key === sort ? (down ? "descending" : "ascending") : null },
  key ? el("button", { type: "button", class: "bare", on: { click: () => go({ sort: key, offset: "",
    descending: key === sort && down ? "0" : "" }, { replace: true }) } }, name + sign(key)) : name));
  const rows = listed.rows.map((row) => {
    const at = row.id === state.t && row.part === (state.part_of || "training");
    return el("tr", { class: at ? "at" : "", on: { click: (event) => {
      if (!event.target.closest("a")) go({ t: row.id, part_of: row.part });
    } } },
    el("td", {}, row.step ?? "end", row.part !== "training" && el("small", {}, row.part)),
    el("td", { class: "task" }, el("a", { href: link({ t: row.id, part_of: row.part }), on: { click: follow } },
      row.task || row.id)),
    el("td", {}, number(row.reward)), el("td", {}, solved(row.success)),
    el("td", {}, row.ended.replaceAll("_", " ")), el("td", {}, row.turns), el("td", {}, row.calls),
    el("td", {}, row.tokens), el("td", { class: "excerpt" }, row.error || row.excerpt));
  });
  const offset = Number(state.offset || 0);
  const turn = (to, name, possible) => el("button", { type: "button", disabled: !possible,
    on: { click: () => go({ offset: to || "" }) } }, name);
  fill(parts.list, el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Trajectories" },
    el("table", { class: "rows" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows))),
  listed.count === 0 && el("p", { class: "soft" }, context.at.read < context.at.bytes ? "Still reading."
    : "None. Clear the filter to see all."),
  listed.count > LIMIT && el("p", { class: "pages" }, turn(offset - LIMIT, "Before", offset > 0),
    ` ${whole(offset + 1)} to ${whole(Math.min(offset + LIMIT, listed.count))} of ${whole(listed.count)} `,
    turn(offset + LIMIT, "Next", offset + LIMIT < listed.count)));
}

export function solved(success) {
  if (success === null || success === undefined) return el("span", { class: "soft" }, "–");
  return success ? el("span", { class: "right" }, "✓ yes") : el("span", { class: "wrong" }, "✗ no");
}

function step(by) {
  if (state.tab !== "trajectories" || !listed.rows.length) return false;
  const at = listed.rows.findIndex((row) => row.id === state.t && row.part === (state.part_of || "training"));
  const row = listed.rows[Math.max(0, Math.min(listed.rows.length - 1, at < 0 ? 0 : at + by))];
  go({ t: row.id, part_of: row.part }, { replace: at >= 0 });
  return true;
}

function turnPage(by) {
  const offset = Number(state.offset || 0) + by * LIMIT;
  if (state.tab !== "trajectories" || offset < 0 || offset >= listed.count) return false;
  go({ offset: offset || "" });
  return true;
}

export const keys = {
  j: () => step(1), k: () => step(-1), n: () => turnPage(1), p: () => turnPage(-1),
  c: () => state.tab === "trajectories" && state.t && nextColour(),
  Escape: () => {
    if (state.tab !== "trajectories" || !(state.t || state.t2)) return false;
    go({ t: "", t2: "", part_of: "", part_2: "" });
    return true;
  },
  "/": () => {
    if (state.tab !== "trajectories") go({ tab: "trajectories" });
    requestAnimationFrame(() => form.text?.focus());
  },
};
