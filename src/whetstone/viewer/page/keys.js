// Keyboard shortcuts and their help page.
import { el, fill } from "/page/dom.js";

const KEYS = [
  ["1 to 6", "Run, Trajectories, Tools, Timeline, Data, Compare"],
  ["j, k", "next and previous trajectory"],
  ["n, p", "next and previous page"],
  ["/", "search in messages and calls"],
  ["c", "color tokens by the next measure"],
  ["Esc", "close the trajectory"],
  ["t", "light or dark"],
  ["?", "show these keys"],
];

export function showKeys() {
  const dialog = document.getElementById("dialog");
  fill(dialog, el("h2", { id: "dialog-title" }, "Keys"),
    el("dl", {}, KEYS.map(([key, said]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, said)])),
    el("button", { type: "button", on: { click: () => dialog.close() } }, "Close"));
  dialog.showModal();
}

export function listen(actions) {
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
    if (typing && event.key !== "Escape") return;
    if (typing) {
      event.target.blur();
      return;
    }
    const action = actions[event.key];
    if (action && action() !== false) event.preventDefault();
  });
}
