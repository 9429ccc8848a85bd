// Elements of a page. Every text is a text node: output of models and tools is never parsed as markup.

const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
const UNSEEN = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// What would move a terminal's cursor or turn the direction of writing shows as �, or goes.
const plain = (value) => (typeof value === "string" ? value.replace(ESCAPES, "").replace(UNSEEN, "\ufffd") : value);
const nodes = (children) => children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map(plain);

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "style") for (const [key, said] of Object.entries(value)) node.style.setProperty(key, said);
    else if (name === "class") node.className = value;
    else if (name in node && !["list", "role"].includes(name)) node[name] = name === "title" ? plain(value) : value;
    else node.setAttribute(name, plain(value));
  }
  node.append(...nodes(children));
  return node;
}

export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...nodes(children));
  return node;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
export const whole = (value) => (value ?? 0).toLocaleString("en");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 120) return `${number(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function table(heads, rows, caption) {
  return el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}

export function details(title, open, make, id) {
  const node = el("details", { open, id }, el("summary", {}, title));
  let made = false;
  const fillIt = () => {
    if (node.open && !made) {
      made = true;
      node.append(make());
    }
  };
  node.addEventListener("toggle", fillIt);
  fillIt();
  return node;
}

export const ago = (seconds) => (seconds < 5 ? "just now" : `${duration(seconds)} ago`);
