// What does a stage on demonstrations, pairs or texts train, token by token?
import { ask } from "/page/api.js";
import { el, fill } from "/page/dom.js";
import { go, state } from "/page/state.js";
import { drawTokens } from "/page/tokens.js";

const COUNT = 4;
let parts = {};

export function mount(main) {
  parts = { form: el("div"), found: el("div") };
  fill(main, el("h1", {}, "Data"), parts.form, parts.found);
}

export async function update(context) {
  const stages = ["pretraining", "supervised", "preference"].filter((stage) => stage in context.at.planned);
  fill(parts.found);
  if (!stages.length) {
    fill(parts.form, el("p", {}, "This run has no stage on demonstrations, pairs or texts. "
      + "Training data of reinforcement is under Trajectories, colored by “trained”."));
    return;
  }
  const stage = stages.includes(state.of) ? state.of : stages[0];
  const first = Number(state.first || 0);
  const choose = el("select", { id: "of", on: { change: () => go({ of: choose.value, first: "" }) } },
    stages.map((name) => el("option", { value: name, selected: name === stage }, name)));
  const note = el("span", { role: "status" });
  const make = async () => {
    note.textContent = " computing; the first time takes a while …";
    try {
      const { shown } = await ask(`runs/${context.at.i}/data`, { stage, first, count: COUNT });
      note.textContent = "";
      render(shown);
    } catch (error) {
      note.textContent = ` ${error.message}`;
    }
  };
  const turn = (to, name) => el("button", { type: "button", disabled: to < 0, on: {
    click: () => go({ of: stage, first: to || "", made: "1" }) } }, name);
  fill(parts.form, el("p", {}, el("label", { htmlFor: "of" }, "stage "), choose, " ",
    el("button", { type: "button", on: { click: make } }, "Show trained tokens"), " ", turn(first - COUNT, "Before"),
    turn(first + COUNT, "Next"), note),
  el("p", { class: "soft" }, `Draws ${first} to ${first + COUNT - 1}, made again as the stage makes them: the recipe's own `
    + "parts are run for it. Blue is trained, the rest is read."));
  if (state.made) await make();
}

function render(shown) {
  fill(parts.found, shown.map((each) => el("section", { class: "taught" }, el("h2", {}, each.title),
    each.segments.map((segment, i) => {
      const tokens = segment.texts.map((text, k) => ({ text, trained: segment.trained[k],
        author: segment.trained[k] ? "trained" : "read" }));
      const trained = segment.trained.filter(Boolean).length;
      return [drawTokens(tokens, "trained", [0, 1], `segment ${i + 1}`),
        el("p", { class: "soft" }, `${tokens.length} tokens, ${trained} trained`)];
    }), !each.segments.length && el("p", { class: "soft" }, "Nothing of it is trained."))));
}
