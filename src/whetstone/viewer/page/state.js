// The state of the page is in its address, so that a link shows the same to other people.

const listeners = [];
export const state = {};

function read() {
  for (const key of Object.keys(state)) delete state[key];
  Object.assign(state, Object.fromEntries(new URLSearchParams(location.search)));
  state.tab ||= "run";
}

export function link(changes) {
  const next = { ...state, ...changes };
  const kept = Object.entries(next).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `/?${new URLSearchParams(kept)}`;
}

export function go(changes, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", link(changes));
  read();
  for (const each of listeners) each();
}

export function onChange(listener) {
  listeners.push(listener);
}

// Other pages' filters do not follow from one page to the next.
export function only(...keys) {
  const cleared = Object.fromEntries(Object.keys(state).map((key) => [key, ""]));
  for (const key of keys) delete cleared[key];
  return cleared;
}

// A click on an internal link changes the page without reloading it.
export function follow(event) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const address = new URL(event.currentTarget.href);
  const next = Object.fromEntries(address.searchParams);
  go({ ...only(), ...next });
}

addEventListener("popstate", () => {
  read();
  for (const each of listeners) each();
});
read();
