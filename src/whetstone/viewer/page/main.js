// Navigation between pages and runs, and updates of the shown one.
import { ask } from "/page/api.js";
import { COLOURS } from "/page/chart.js";
import { ago, el, fill, whole } from "/page/dom.js";
import { listen, showKeys } from "/page/keys.js";
import { follow, go, link, onChange, only, state } from "/page/state.js";
import * as compare from "/page/compare.js";
import * as data from "/page/data.js";
import * as run from "/page/run.js";
import * as timeline from "/page/timeline.js";
import * as tools from "/page/tools.js";
import * as trajectories from "/page/trajectories.js";

const PAGES = { run, trajectories, tools, timeline, data, compare };
const NAMES = { run: "Run", trajectories: "Trajectories", tools: "Tools", timeline: "Timeline", data: "Data",
  compare: "Compare" };
const EVERY = 2000;
const LONGEST = 8;
const main = document.getElementById("main");
const status = document.getElementById("status");
let told = { runs: [] };
let shown = { tab: "", run: "" };
let page = null;

const current = () => Math.max(0, told.runs.findIndex((each) => each.name === state.run));

function context() {
  const names = state.runs ? state.runs.split("~") : told.runs.slice(0, LONGEST).map((each) => each.name);
  const chosen = told.runs.map((each, i) => ({ ...each, i, colour: COLOURS[i % COLOURS.length] }));
  const overlaid = chosen.filter((each) => names.includes(each.name));
  const at = chosen[current()];
  return { all: chosen, overlaid: overlaid.length ? overlaid : [at], at, main, failed };
}

function failed(error) {
  if (error.name !== "AbortError") status.textContent = error.message;
}

const PILLS = { running: "running", finished: "finished", silent: "nothing new", empty: "nothing yet" };

function progressOf(each) {
  const steps = each.steps ? `${whole(each.step)} of ${whole(each.steps)}` : whole(each.step);
  const age = each.state === "finished" || each.age === null ? "" : `, ${ago(each.age)}`;
  const reading = each.read < each.bytes ? `, reading ${Math.floor((100 * each.read) / each.bytes)} %` : "";
  return `${PILLS[each.state]}${each.stage ? ` · ${each.stage} ${steps}` : ""}${age}${reading}`;
}

function drawHead() {
  const { all, overlaid, at } = context();
  fill(document.getElementById("tabs"), Object.entries(NAMES).map(([tab, name], i) =>
    el("a", { href: link({ ...only("run", "runs"), tab }), "aria-current": state.tab === tab ? "page" : null,
      title: `${name} (${i + 1})`, on: { click: follow } }, name)));
  const names = new Set(overlaid.map((each) => each.name));
  fill(document.getElementById("runs"), all.map((each) => {
    const toggled = new Set(names);
    toggled[names.has(each.name) && names.size > 1 ? "delete" : "add"](each.name);
    return el("span", { class: `chip ${each.i === at.i ? "at" : ""}` },
      all.length > 1 && el("input", { type: "checkbox", checked: names.has(each.name),
        "aria-label": `show ${each.name}`, on: { change: () => go({ runs: [...toggled].join("~") }) } }),
      el("i", { class: "dot", style: { "--dot": each.colour } }),
      el("a", { href: link({ run: each.name, t: "", t2: "" }), "aria-current": each.i === at.i ? "true" : null,
        on: { click: follow } }, each.name),
      el("span", { class: `soft state-${each.state}` }, progressOf(each)));
  }));
  document.title = `${at.name} · ${NAMES[state.tab] ?? ""} · Whetstone`;
}

async function render() {
  if (!told.runs.length) return;
  if (!(state.tab in PAGES)) state.tab = "run";
  drawHead();
  const now = context();
  status.textContent = "";
  try {
    if (shown.tab !== state.tab) {
      fill(main);
      page = PAGES[state.tab];
      shown = { tab: state.tab, run: now.at.name };
      page.mount(main, now);
    }
    await page.update(now);
  } catch (error) {
    failed(error);
  }
}

async function look() {
  let next;
  try {
    next = await ask("state");
  } catch (error) {
    status.textContent = error instanceof TypeError ? "The viewer was stopped; start it again to continue." : error.message;
    return;
  }
  const before = new Map(told.runs.map((each) => [each.name, JSON.stringify(each.revision)]));
  const first = !told.runs.length;
  told = next;
  if (first) {
    await render();
    return;
  }
  if (status.textContent.startsWith("The viewer was stopped")) status.textContent = "";
  const focused = document.activeElement?.closest?.("#runs, #tabs");
  if (!focused) drawHead();
  const fresh = told.runs.filter((each) => before.get(each.name) !== JSON.stringify(each.revision));
  if (fresh.length && page?.live) {
    try {
      await page.live(context(), new Set(fresh.map((each) => each.name)));
    } catch (error) {
      failed(error);
    }
  }
}

async function watch() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, EVERY));
  }
}

function theme(change) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  let now = localStorage.getItem("theme") ?? (dark ? "dark" : "light");
  if (change) {
    now = now === "dark" ? "light" : "dark";
    localStorage.setItem("theme", now);
  }
  document.documentElement.dataset.theme = now;
}

theme(false);
document.getElementById("theme").addEventListener("click", () => theme(true));
document.getElementById("help").addEventListener("click", showKeys);
const tabs = Object.fromEntries(Object.keys(NAMES).map((tab, i) => [i + 1, () => go({ ...only("run", "runs"), tab })]));
listen({ ...tabs, t: () => theme(true), "?": showKeys, ...trajectories.keys });
onChange(render);
watch();
