// Text of models and people is inserted only by textContent, so that it is never executed.
"use strict";

const view = document.getElementById("view");
const status = document.getElementById("status");
const nameField = document.getElementById("name");
const keyField = document.getElementById("key");
const talk = { id: newId(), messages: [], tools: "", answers: [], notes: [] };
let model = "";
let current = "talk";
let seat = null; // the one that is held
let polling = 0;
let listed = ""; // the seats as they are shown

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((n) => n.toString(16).padStart(2, "0")).join("");
}

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function button(text, act, more = {}) {
  return make("button", { type: "button", textContent: text, on: { click: () => tried(act) }, ...more });
}

function showStatus(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

async function tried(act) {
  try {
    await act();
  } catch (error) {
    showStatus(error.message, true);
  }
}

function headers() {
  const found = { "content-type": "application/json" };
  if (keyField.value) found.authorization = `Bearer ${keyField.value}`;
  return found;
}

async function asked(method, path, body) {
  const answer = await fetch(path, { method, headers: headers(), body: body && JSON.stringify(body) });
  if (answer.status === 401) document.getElementById("key-label").hidden = false;
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error?.message ?? `the server responded with status ${answer.status}`);
  }
  return answer;
}

const get = async (path) => (await asked("GET", path)).json();
const post = async (path, body = {}) => (await asked("POST", path, { ...body, by: nameField.value || "somebody" })).json();
const place = (id) => `/v1/episodes/${encodeURIComponent(id)}`;

// ------------------------------------------------------------ conversation

function callShown(call) {
  return make("div", { className: "call" },
    make("span", { className: "name", textContent: call.function.name }),
    make("pre", { textContent: call.function.arguments }));
}

function textOf(content) {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => part.text ?? `[${part.type}]`).join("");
}

const WHO = { user: "user", assistant: "policy", tool: "tool", system: "system" };

function shown(message, { who = WHO[message.role], kind = "", below = [] } = {}) {
  return make("li", { className: `${message.role} ${kind}` },
    make("div", { className: "who" }, make("span", { textContent: who })),
    make("div", { className: "words", textContent: textOf(message.content) }),
    ...(message.tool_calls ?? []).map(callShown), ...below);
}

function conversationShown(told, refresh) {
  const list = make("ol", { className: "talk", "aria-live": "polite", "aria-label": "Conversation" });
  const seen = new Set();
  for (const answer of told.answers) {
    const asked = JSON.stringify([answer.behind, answer.heard]); // once before both answers of an intervention
    if (!seen.has(asked)) list.append(...answer.heard.map((message) => shown(message)));
    seen.add(asked);
    const kind = answer.by ? "by-person" : answer.replaced_by !== null ? "replaced" : "";
    const who = answer.by ? `${answer.by}, instead of the policy` : kind ? "policy, taken over" : "policy";
    list.append(shown(answer.message, { who, kind, below: [toolbar(told, answer, refresh)] }));
  }
  return list;
}

function toolbar(told, answer, refresh) {
  const notes = told.notes.filter((note) => note.answer === answer.answer);
  const box = make("div", {}, ...notes.map((note) => {
    const sign = note.rating === null ? "" : note.rating > 0 ? "good " : note.rating < 0 ? "bad " : `${note.rating} `;
    return make("div", { className: "note", textContent: `${sign}${note.note} — ${note.by}` });
  }));
  if (told.closed || answer.by || answer.replaced_by !== null) return box;
  const rate = (rating, note = "") => async () => {
    await post(`${place(told.id)}/rate`, { answer: answer.answer, rating, note });
    showStatus("Rated.");
    await refresh();
  };
  const rated = notes.some((note) => note.rating !== null);
  const row = make("div", { className: "row" },
    button("Good", rate(1), { disabled: rated }),
    button("Bad", rate(-1), { disabled: rated }),
    button("Note", () => noteEditor(box, told, answer, rated, refresh)));
  if (answer.may_take_over) row.append(button("Take over", () => takeOverEditor(box, told, answer, refresh)));
  box.append(row);
  return box;
}

function editor(box, fields, save, label) {
  box.querySelector("form")?.remove();
  const form = make("form", {
    on: {
      submit: (event) => { event.preventDefault(); tried(save); },
      keydown: (event) => { if (event.key === "Escape") { form.remove(); view.focus(); } },
    },
  }, ...fields, make("div", { className: "row" },
    make("button", { type: "submit", className: "main", textContent: label }),
    button("Cancel", () => form.remove())));
  box.append(form);
  form.querySelector("textarea, input").focus();
}

function noteEditor(box, told, answer, rated, refresh) {
  const note = make("textarea", { ariaLabel: "Note", placeholder: "What would have helped, or a remark" });
  const bad = make("input", { type: "checkbox", id: `bad-${answer.answer}` });
  const ask = make("label", {}, bad, "the answer was bad, and this would have helped");
  editor(box, rated ? [note] : [note, ask], async () => {
    const rating = bad.checked ? -1 : null;
    await post(`${place(told.id)}/rate`, { answer: answer.answer, rating, note: note.value });
    showStatus("Stored.");
    await refresh();
  }, "Keep");
}

function messageFields(message, tool = "") {
  const words = make("textarea", { ariaLabel: "Replacement", value: textOf(message.content) });
  const calls = make("div");
  const addCall = (name, given) => {
    const row = make("div", { className: "call" },
      make("input", { ariaLabel: "Tool", value: name, placeholder: "tool" }),
      make("textarea", { className: "code", ariaLabel: "Arguments as JSON", value: given }),
      button("Remove call", () => row.remove()));
    calls.append(row);
  };
  for (const call of message.tool_calls ?? []) addCall(call.function.name, call.function.arguments);
  const read = () => {
    const made = [...calls.children].map((row, number) => ({
      id: `call_${number}`, type: "function",
      function: { name: row.querySelector("input").value, arguments: row.querySelector("textarea").value },
    }));
    return { content: words.value, ...(made.length ? { tool_calls: made } : {}) };
  };
  return { nodes: [words, calls, button("Add a call", () => addCall(tool, "{}"))], read };
}

function takeOverEditor(box, told, answer, refresh) {
  const { nodes, read } = messageFields(answer.message, told.tools[0]?.function.name);
  editor(box, nodes, async () => {
    const message = read();
    await post(`${place(told.id)}/take-over`, { answer: answer.answer, message });
    showStatus("Taken over: the episode continues from your message.");
    await refresh();
  }, "Replace");
}

// ------------------------------------------------------------ talk

async function refreshTalk() {
  if (talk.messages.length || talk.answers.length) {
    const told = await get(`${place(talk.id)}/conversation`);
    talk.messages = told.messages;
    talk.told = told;
  }
  if (current === "talk") showTalk();
}

function showTalk() {
  view.replaceChildren();
  if (talk.told) view.append(conversationShown(talk.told, refreshTalk));
  else view.append(make("p", { className: "faint", textContent: "Send a message to the policy. You can rate its answers, add notes, or take over." }));
  const calls = talk.messages.at(-1)?.role === "assistant" ? talk.messages.at(-1).tool_calls ?? [] : [];
  const boxes = calls.map((call) => make("textarea", { className: "code", ariaLabel: `Result of ${call.function.name}`, placeholder: `what ${call.function.name} returns` }));
  const words = make("textarea", { id: "words", ariaLabel: "Your message", placeholder: "Your message (Enter sends, Shift+Enter for a new line)" });
  const form = make("form", {
    on: {
      submit: (event) => {
        event.preventDefault();
        const new_ = calls.length
          ? calls.map((call, n) => ({ role: "tool", tool_call_id: call.id, content: boxes[n].value }))
          : [{ role: "user", content: words.value }];
        if (calls.length || words.value.trim()) tried(() => send(new_));
      },
      keydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && event.target === words) { event.preventDefault(); form.requestSubmit(); }
      },
    },
  }, ...(calls.length ? boxes : [words]), make("div", { className: "row" },
    make("button", { type: "submit", className: "main", textContent: calls.length ? "Answer as the tool" : "Send" }),
    button("New conversation", () => { Object.assign(talk, { id: newId(), messages: [], told: null }); showTalk(); })));
  const tools = make("textarea", { className: "code", ariaLabel: "Tools as JSON", value: talk.tools, placeholder: '[{"type": "function", "function": {"name": …, "description": …, "parameters": …}}]', on: { change: () => { talk.tools = tools.value; } } });
  view.append(form, make("details", {}, make("summary", { textContent: "Tools on offer (JSON)" }), tools));
  (boxes[0] ?? words).focus({ preventScroll: true });
}

async function send(new_) {
  const body = { model, messages: [...talk.messages, ...new_], stream: true };
  if (talk.tools.trim()) {
    try { body.tools = JSON.parse(talk.tools); } catch { throw new Error("the tools are not JSON"); }
  }
  showStatus("");
  const answer = await asked("POST", `/episodes/${encodeURIComponent(talk.id)}/v1/chat/completions`, body);
  const list = view.querySelector("ol.talk") ?? make("ol", { className: "talk", "aria-live": "polite" });
  if (!list.isConnected) view.prepend(list);
  for (const message of new_) list.append(shown(message));
  const growing = shown({ role: "assistant", content: "" });
  const words = growing.querySelector(".words");
  words.classList.add("drawing");
  list.append(growing);
  growing.scrollIntoView({ block: "end" });
  for (const field of view.querySelectorAll("form textarea, form button")) field.disabled = true;
  let failed = "";
  for await (const event of eventsOf(answer.body)) {
    if (event.error) failed = event.error.message;
    words.textContent += event.choices?.[0]?.delta?.content ?? "";
  }
  talk.messages = body.messages;
  if (!failed) await post(`${place(talk.id)}/watch`);
  await refreshTalk();
  if (failed) showStatus(failed, true);
}

async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

// ------------------------------------------------------------ queue

async function showQueue() {
  const { data } = await get("/v1/people/seats");
  const waiting = data.filter((each) => each.waits && !each.by).length;
  document.getElementById("waiting").textContent = waiting || "";
  if (current !== "queue") return;
  if (seat) {
    const now = data.find((each) => each.id === seat.id);
    if (!now || now.by !== (seat.by ?? "")) {
      showStatus(now ? "Your claim has expired; other people can take it." : "This episode has ended.");
      seat = null;
    } else if (now.turn !== seat.turn || now.waits !== seat.waits || !view.querySelector("#seat")) {
      seat = now;
      showSeat();
      return;
    } else return;
  }
  const now = JSON.stringify(data);
  if (now === listed && view.querySelector("#seats")) return; // so that the keyboard's place in it stays
  listed = now;
  view.replaceChildren(
    make("p", { className: "faint", textContent: "Agents under test wait here for a person who plays their user; held answers wait for a review." }),
    make("div", { className: "row" }, button("Take the next", claim, { className: "main", disabled: !data.some((each) => each.waits) })),
    make("ul", { className: "list", id: "seats" }, ...data.map((each) => make("li", {},
      make("span", {}, make("strong", { textContent: each.about || "(no description of the user)" }), make("br"),
        make("span", { className: "faint", textContent: `turn ${each.turn + 1}, ${each.by ? `with ${each.by}` : each.waits ? `waits, ${left(each.due)}` : "the agent is at work"}` })),
      button("Take", () => claim(each.id), { disabled: !each.waits || Boolean(each.by) })))));
}

function left(due) {
  const seconds = Math.max(0, Math.round(due - Date.now() / 1000));
  return seconds > 90 ? `${Math.round(seconds / 60)} min left` : `${seconds} s left`;
}

async function claim(id) {
  const told = await post(id ? `/v1/people/seats/${id}/claim` : "/v1/people/claim");
  if (!told.seat) { showStatus("No seat is waiting, except those you gave back."); return; }
  seat = told.seat;
  showSeat();
}

function showHeld() {
  const { nodes, read } = messageFields(seat.messages.at(-1));
  const decide = (said) => async () => {
    await post(`/v1/people/seats/${seat.id}/say`, said());
    seat = null;
    showStatus("Sent to the agent.");
    await showQueue();
  };
  const form = make("form", { on: { submit: (event) => { event.preventDefault(); tried(decide(() => ({ message: read() }))); } } },
    ...nodes, make("div", { className: "row" },
      button("Accept", decide(() => ({ accept: true })), { className: "main" }),
      make("button", { type: "submit", textContent: "Replace" }),
      button("Give back", giveBack)));
  view.replaceChildren(make("section", { id: "seat" },
    make("h2", { textContent: "The agent waits for this answer" }), make("p", { className: "about", textContent: seat.about }),
    make("ol", { className: "talk" }, ...seat.messages.map((message) => shown(message))), form));
}

async function giveBack() {
  await post(`/v1/people/seats/${seat.id}/release`);
  seat = null;
  await showQueue();
}

function showSeat() {
  if (seat.kind === "policy") { showHeld(); return; }
  const words = make("textarea", { ariaLabel: "Message of the user", placeholder: "Your message as the user", disabled: !seat.waits });
  const speak = (ended) => async () => {
    seat = await (await asked("POST", `/v1/people/seats/${seat.id}/say`, { content: words.value, ended, by: nameField.value || "somebody" })).json();
    if (ended) { seat = null; showStatus("Sent; the episode has ended."); await showQueue(); } else showSeat();
  };
  const form = make("form", {
    on: {
      submit: (event) => { event.preventDefault(); tried(speak(false)); },
      keydown: (event) => { if (event.key === "Enter" && !event.shiftKey && event.target === words) { event.preventDefault(); form.requestSubmit(); } },
    },
  }, words, make("div", { className: "row" },
    make("button", { type: "submit", className: "main", textContent: "Send", disabled: !seat.waits }),
    button("Send, and end", speak(true), { disabled: !seat.waits }),
    button("Give back", giveBack)));
  view.replaceChildren(make("section", { id: "seat" },
    make("h2", { textContent: "You are the user" }), make("p", { className: "about", textContent: seat.about }),
    make("ol", { className: "talk", "aria-live": "polite" }, ...seat.messages.map((message) => shown(message, { who: message.role === "assistant" ? "agent" : "you" }))),
    seat.waits ? null : make("p", { className: "faint drawing", textContent: "The agent is at work " }), form));
  if (seat.waits) words.focus();
}

// ------------------------------------------------------------ episodes

async function showEpisodes() {
  const { data } = await get("/v1/episodes");
  const held = await get("/v1/live/episodes").catch(() => ({ data: [] }));
  const rows = data.map((each) => make("li", {},
    make("span", { textContent: `${each.id} · ${each.turns} answers` }),
    make("span", { className: "row" }, button("Open", () => openEpisode(each.id)),
      button("Hold its answers", async () => {
        await post(`${place(each.id)}/watch`, { seconds: 120 });
        showStatus("Each of its answers waits up to two minutes in the queue before the agent receives it.");
      }))));
  const waiting = held.data.filter((each) => each.held > 0).map((each) => make("li", {},
    make("span", { textContent: `${each.id} · ${each.held} answers wait for approval` }),
    make("span", { className: "row" },
      button("Approve", async () => { await post(`/v1/live/episodes/${encodeURIComponent(each.id)}/approve`); await showEpisodes(); }),
      button("Reject", async () => { await post(`/v1/live/episodes/${encodeURIComponent(each.id)}/reject`); await showEpisodes(); }))));
  if (current !== "episodes") return;
  view.replaceChildren(make("h2", { textContent: "Open episodes" }), make("ul", { className: "list" }, ...rows));
  if (waiting.length) view.append(make("h2", { textContent: "Held until approved" }), make("ul", { className: "list" }, ...waiting));
}

async function openEpisode(id) {
  const told = await get(`${place(id)}/conversation`);
  view.replaceChildren(
    make("div", { className: "row" }, button("Back", showEpisodes), button("Look again", () => openEpisode(id))),
    make("h2", { textContent: id }), conversationShown(told, () => openEpisode(id)));
}

// ------------------------------------------------------------ start

const SHOW = { talk: showTalk, queue: showQueue, episodes: showEpisodes };

function go(name) {
  current = name;
  for (const each of document.querySelectorAll("nav button")) {
    if (each.dataset.view === name) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  showStatus("");
  view.replaceChildren();
  return tried(SHOW[name]);
}

async function start() {
  model = (await get("/v1/models")).data[0].id;
  document.getElementById("model").textContent = model;
  clearInterval(polling);
  polling = setInterval(() => showQueue().catch(() => {}), 2000);
  await go(current);
}

for (const each of document.querySelectorAll("nav button")) each.addEventListener("click", () => go(each.dataset.view));
nameField.value = sessionStorage.getItem("name") ?? "";
keyField.value = sessionStorage.getItem("key") ?? "";
nameField.addEventListener("change", () => sessionStorage.setItem("name", nameField.value));
keyField.addEventListener("change", () => { sessionStorage.setItem("key", keyField.value); tried(start); });
tried(start);
