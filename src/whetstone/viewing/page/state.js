// What is looked at stands in the address, so that a link shows somebody else the same.

const heard = [];
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
  for (const each of heard) each();
}

export function onChange(listener) {
  heard.push(listener);
}

// Other pages' filters do not follow from one page to the next.
export function only(...keys) {
  const cleared = Object.fromEntries(Object.keys(state).map((key) => [key, ""]));
  for (const key of keys) delete cleared[key];
  return cleared;
}

// A click on a link of ours changes the page without loading it anew.
export function follow(event) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const address = new URL(event.currentTarget.href);
  const next = Object.fromEntries(address.searchParams);
  go({ ...only(), ...next });
}

addEventListener("popstate", () => {
  read();
  for (const each of heard) each();
});
read();
