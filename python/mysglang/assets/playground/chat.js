// The chat: which conversation is shown, what is sent, and what may be done while an answer comes.

import { $, eachFrame, el, icon } from "./dom.js";
import { receive } from "./answer.js";
import { withKey } from "./key_dialog.js";
import { MessageView, resultsForm } from "./message.js";
import { BadSetting, chatRequest } from "./request.js";
import { Speaker } from "./speaker.js";

const NEAR_END = 80; // pixels

export class ChatPage {
  /** `model`: its name, which may not be known yet. */
  constructor(chats, settings, model) {
    this.#chats = chats;
    this.#settings = settings;
    this.#model = model;
    this.#chat = chats.all[0] ?? chats.create();
    this.#wire();
    this.show(this.#chat);
    this.told();
  }

  #chats; #settings; #model; #chat; #views = new Map(); #running = null;
  #speaker = new Speaker($("spoken"));

  /** Shows a conversation. One that is being answered is stopped first. */
  show(chat) {
    this.stop();
    this.#chat = chat;
    this.#draw();
    this.#list();
  }

  /** Ends the answer that is coming, if one is. What came of it stays. */
  stop() {
    this.#running?.abort();
  }

  /** The line below the composer says what is sent beside the messages. */
  told() {
    const { tools, schema, system } = this.#settings;
    const words = [system.trim() && "system prompt", tools.on && "tools", schema.on && "JSON schema"].filter(Boolean);
    $("active").textContent = words.length ? `With ${words.join(", ")}` : "";
  }

  #wire() {
    const box = $("message");
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.stop();
      else this.#send();
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.#running) this.#send();
    });
    box.addEventListener("input", () => this.#fit());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    $("new-chat").addEventListener("click", () => this.#begin());
    $("clear-chats").addEventListener("click", () => {
      if (!confirm("Delete all chats from this browser?")) return;
      this.#chats.clear();
      this.#begin();
    });
    addEventListener("pagehide", () => this.#chats.save());
  }

  #begin() {
    const empty = this.#chats.all.find((chat) => !chat.messages.length);
    this.show(empty ?? this.#chats.create());
    $("message").focus();
  }

  #fit() {
    const box = $("message");
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, innerHeight * 0.4)}px`;
  }

  #send() {
    const box = $("message");
    const content = box.value.trim();
    if (!content) return;
    if (!this.#fits()) return;
    box.value = "";
    this.#fit();
    this.#chat.title ||= content.slice(0, 60);
    this.#chat.messages.push({ role: "user", content });
    this.#answer();
  }

  /** Whether the settings can be sent; says what is wrong with them. */
  #fits() {
    try {
      chatRequest(this.#settings, this.#chat, this.#model());
      this.#complain("");
      return true;
    } catch (error) {
      if (!(error instanceof BadSetting)) throw error;
      this.#complain(error.message);
      return false;
    }
  }

  #complain(text) {
    $("problem").textContent = text;
    $("problem").hidden = !text;
  }

  /** Asks for the next message of the conversation, and shows it as it comes. */
  async #answer() {
    if (!this.#fits()) return;
    const chat = this.#chat;
    const body = chatRequest(this.#settings, chat, this.#model());
    const message = { role: "assistant", content: "" };
    chat.messages.push(message);
    this.#draw();
    this.#list();
    const running = (this.#running = new AbortController());
    this.#busy(true);
    const view = this.#views.get(message);
    const draw = eachFrame(() => this.#grew(view, running));
    try {
      await withKey(() => receive(body, message, running.signal, draw));
      if (message.finish === "length") message.note = "The answer ended because it reached the most tokens allowed.";
    } catch (error) {
      const stopped = error.name === "AbortError";
      message.note = stopped ? "Stopped." : error.message;
      message.wrong = !stopped;
    }
    if (this.#running === running) this.#running = null;
    this.#busy(Boolean(this.#running));
    this.#chats.save();
    this.#speaker.end(message.content);
    view.update();
    if (chat === this.#chat) this.#offerResults(message);
    this.#scroll();
  }

  #grew(view, running) {
    if (this.#running !== running) return;
    view.update(true);
    this.#speaker.say(view.message.content);
    this.#scroll();
  }

  #busy(on) {
    const button = $("send");
    button.replaceChildren(icon(on ? "stop" : "send"));
    button.setAttribute("aria-label", on ? "Stop" : "Send");
    $("chat").setAttribute("aria-busy", String(on));
  }

  /** The user plays the tools: a box for each call that has no result yet. */
  #offerResults(message) {
    if (!message.calls?.length || message !== this.#chat.messages.at(-1) || message.wrong) return;
    const form = resultsForm(message.calls, (results) => {
      for (const [at, { id, name }] of message.calls.entries())
        this.#chat.messages.push({ role: "tool", content: results[at], call_id: id, name });
      this.#answer();
    });
    $("thread").append(form);
    form.querySelector("textarea").focus();
    this.#scroll(true);
  }

  #edit(message, content) {
    if (!content.trim()) return;
    const at = this.#chat.messages.indexOf(message);
    this.stop();
    if (at === 0) this.#chat.title = content.slice(0, 60);
    this.#chat.messages = [...this.#chat.messages.slice(0, at), { role: "user", content }];
    this.#answer();
  }

  #again(message) {
    this.stop();
    this.#chat.messages = this.#chat.messages.slice(0, this.#chat.messages.indexOf(message));
    this.#answer();
  }

  #draw() {
    // A message that is shown already keeps its view: whether its thoughts are unfolded, and its tokens shown.
    const before = this.#views;
    this.#views = new Map();
    this.#speaker.begin();
    const does = { edit: (message, text) => this.#edit(message, text), again: (message) => this.#again(message) };
    for (const message of this.#chat.messages) this.#views.set(message, before.get(message) ?? new MessageView(message, does));
    const nodes = [...this.#views.values()].map((view) => view.node);
    $("thread").replaceChildren(...(nodes.length ? nodes : [welcome((text) => this.#try(text))]));
    if (nodes.length) this.#offerResults(this.#chat.messages.at(-1));
    this.#scroll(true);
  }

  #try(text) {
    $("message").value = text;
    this.#send();
  }

  #list() {
    const rows = this.#chats.all.filter((chat) => chat.messages.length || chat === this.#chat);
    $("chats").replaceChildren(...rows.map((chat) => this.#row(chat)));
  }

  #row(chat) {
    const title = chat.title || "New chat";
    const open = el("button", { class: "chat-title", "aria-current": chat === this.#chat ? "true" : null, onclick: () => this.show(chat) }, title);
    const remove = el("button", { class: "icon small", "aria-label": `Delete ${title}`, onclick: () => this.#remove(chat) }, icon("trash"));
    return el("li", {}, open, remove);
  }

  #remove(chat) {
    this.#chats.remove(chat);
    this.show(chat === this.#chat ? (this.#chats.all[0] ?? this.#chats.create()) : this.#chat);
  }

  /** Follows the end, unless the reader has scrolled away from it. */
  #scroll(always = false) {
    const thread = $("thread");
    const away = thread.scrollHeight - thread.scrollTop - thread.clientHeight;
    if (always || away < NEAR_END + thread.clientHeight / 4) thread.scrollTop = thread.scrollHeight;
  }
}

const IDEAS = ["What is the capital of France?", "Write a short story about a cat.", "What is 17 + 25?"];

function welcome(ask) {
  const ideas = IDEAS.map((text) => el("button", { class: "idea", type: "button", onclick: () => ask(text) }, text));
  return el("div", { class: "welcome" }, el("h1", {}, "What shall we talk about?"), el("div", { class: "ideas" }, ideas));
}
