// One message of a chat on the page: thoughts folded, text as Markdown or as tokens, tool calls, and what can be done.
//
// A message is { role, content, thought, calls: [{ id, name, arguments }], call_id, name, tokens, figures, note, wrong }.

import { action, el, icon } from "./dom.js";
import { codeBlock, markdown } from "./markdown.js";
import { legend, TokenView } from "./token_view.js";

const LONG = 20_000; // characters
const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

export class MessageView {
  /** `does`: what the buttons do; `edit(message, text)`, `again(message)`. */
  constructor(message, does) {
    this.message = message;
    this.#does = does;
    this.#tokens = new TokenView();
    this.#thought = el("div", { class: "prose" });
    this.#fold = el("details", { class: "thought", hidden: true }, el("summary", {}, icon("chevron"), el("span", {}, "Thinking")), this.#thought);
    this.#body = el("div", { class: "prose" });
    this.#calls = el("div", { class: "calls" });
    this.#note = el("p", { class: "note", hidden: true });
    this.#figures = el("span", { class: "figures" });
    this.#buttons = el("div", { class: "actions" });
    this.#tokenBox = el("div", { class: "token-box", hidden: true }, this.#tokens.node, legend());
    this.node = el(
      "article",
      { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
      el("h2", { class: "who" }, message.role === "tool" ? `Result of ${message.name}` : NAMES[message.role]),
      this.#fold,
      this.#body,
      this.#tokenBox,
      this.#calls,
      this.#note,
      el("footer", {}, this.#buttons, this.#figures),
    );
    this.update();
  }

  #does; #tokens; #thought; #fold; #body; #calls; #note; #figures; #buttons; #tokenBox;
  #showsTokens = false;
  #written = { content: null, thought: null, calls: "" };

  /** Shows what the message is now. `live`: it is still being written. */
  update(live = false) {
    const { role, content, thought, tokens, note, wrong, figures, calls } = this.message;
    this.node.setAttribute("aria-busy", String(live));
    this.node.classList.toggle("live", live);
    if (thought && thought !== this.#written.thought) {
      this.#fold.hidden = false;
      this.#thought.replaceChildren(...markdown(thought));
    }
    this.#fold.classList.toggle("live", live && !content && !calls?.length);
    if (content !== this.#written.content) this.#body.replaceChildren(...this.#text(role, content ?? "", live));
    const called = JSON.stringify(calls ?? []);
    if (called !== this.#written.calls) this.#calls.replaceChildren(...(calls ?? []).map(callView));
    this.#written = { content, thought, calls: called };
    if (tokens?.length && this.#showsTokens) this.#tokens.update(tokens);
    this.#note.hidden = !note;
    this.#note.textContent = note ?? "";
    this.#note.classList.toggle("wrong", Boolean(wrong));
    this.#figures.textContent = figures ? told(figures) : "";
    this.#buttons.replaceChildren(...(live ? [] : this.#actions()));
  }

  #text(role, content, live) {
    // Each frame draws the whole text anew: what has grown long is plain while it grows.
    if (live && content.length > LONG) return [el("p", { class: "plain" }, content)];
    if (role === "assistant") {
      const json = /^\s*[[{]/.test(content) && prettyJson(content);
      return json ? [codeBlock(json, "json")] : markdown(content);
    }
    return role === "tool" ? [codeBlock(content)] : [el("p", { class: "plain" }, content)];
  }

  #actions() {
    const { role, tokens, content } = this.message;
    const copy = content && action("copy", "Copy", () => copyText(content ?? "", copy));
    if (role === "user") return [copy, action("edit", "Edit", () => this.#edit())];
    if (role === "tool") return [copy].filter(Boolean);
    const again = action("again", "Regenerate", () => this.#does.again(this.message));
    const show = action("tokens", "Tokens", () => this.#showTokens(!this.#showsTokens, show));
    show.setAttribute("aria-pressed", String(this.#showsTokens));
    return [copy, again, tokens?.length && show].filter(Boolean);
  }

  #showTokens(on, button) {
    this.#showsTokens = on;
    button.setAttribute("aria-pressed", String(on));
    this.#tokenBox.hidden = !on;
    this.#body.hidden = on;
    if (on) this.#tokens.update(this.message.tokens);
  }

  #edit() {
    const text = el("textarea", { "aria-label": "Edit the message", rows: 3 });
    text.value = this.message.content;
    const done = () => this.update();
    const save = () => this.#does.edit(this.message, text.value);
    const form = el(
      "form",
      { class: "edit" },
      text,
      el("div", { class: "buttons" }, el("button", { type: "button", onclick: done }, "Cancel"), el("button", { class: "primary" }, "Send again")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#written.content = null;
        done();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    this.#written.content = null;
    this.#body.replaceChildren(form);
    this.#buttons.replaceChildren();
    text.focus();
  }
}

/** A form for the results of calls; `answer` gets a text for each call. */
export function resultsForm(calls, answer) {
  const boxes = calls.map((call, at) => {
    const id = `result-${at}`;
    const text = el("textarea", { id, rows: 2, class: "code", placeholder: '{"temperature": 21}', spellcheck: "false" });
    return el("div", { class: "field" }, el("label", { for: id }, `What ${call.name} returns`), text);
  });
  const form = el("form", { class: "results", "aria-label": "Tool results" }, boxes, el("div", { class: "buttons" }, el("button", { class: "primary" }, "Send results")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answer([...form.querySelectorAll("textarea")].map((box) => box.value));
  });
  return form;
}

function callView(call) {
  return el("div", { class: "call" }, el("p", {}, "Calls ", el("code", {}, call.name)), codeBlock(prettyJson(call.arguments) || call.arguments, "json"));
}

/** The text laid out, or null if it is no JSON. */
function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function told({ tokens, cached, prompt, first_ms: first, rate }) {
  const parts = [];
  if (tokens !== undefined) parts.push(`${tokens} tokens`);
  if (rate) parts.push(`${rate.toFixed(0)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(0)} ms`);
  if (cached) parts.push(`${cached} of ${prompt} prompt tokens cached`);
  return parts.join(" · ");
}

async function copyText(text, button) {
  const word = button.querySelector("span");
  try {
    await navigator.clipboard.writeText(text);
    word.textContent = "Copied";
  } catch {
    // Without HTTPS, or without the user's leave, a page has no clipboard.
    word.textContent = "Not allowed";
  }
  setTimeout(() => (word.textContent = "Copy"), 1500);
}
