// Requests to the server. A key, if required, is stored only in this browser tab and is never part of an address.
import { el, fill } from "/page/dom.js";

let waiting = null;

function askKey(said) {
  const dialog = document.getElementById("dialog");
  const input = el("input", { type: "password", autocomplete: "off", id: "key", required: true });
  return new Promise((done) => {
    const submit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("key", input.value.trim());
      dialog.close();
      done();
    };
    fill(dialog, el("form", { on: { submit } }, el("h2", { id: "dialog-title" }, "A key, please"), el("p", {}, said),
      el("label", { htmlFor: "key" }, "Key"), input, el("button", { type: "submit" }, "Look")));
    dialog.showModal();
  });
}

export async function ask(path, params = {}, signal = undefined) {
  const asked = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value != null));
  for (;;) {
    const key = sessionStorage.getItem("key");
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const answer = await fetch(`/api/${path}${asked.size ? `?${asked}` : ""}`, { headers, signal });
    const content = await answer.json();
    if (answer.ok) return content;
    if (answer.status === 403) sessionStorage.removeItem("key"); // another may do
    if (answer.status !== 401) throw new Error(content.error ?? `the viewer responded with status ${answer.status}`);
    waiting ??= askKey(content.error).finally(() => { waiting = null; });
    await waiting;
  }
}

export function save(name, content) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(content)], { type: "application/json" }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
