// Chats and settings in this browser's localStorage. The server keeps none of them.

const CHATS = "mysglang.chats";
const SETTINGS = "mysglang.settings";

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Whether there was room. */
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export class Chats {
  constructor() {
    const found = read(CHATS, []);
    this.all = Array.isArray(found) ? found.filter((chat) => Array.isArray(chat?.messages)) : [];
  }

  create() {
    const chat = { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", messages: [] };
    this.all.unshift(chat);
    return chat;
  }

  remove(chat) {
    this.all = this.all.filter((other) => other !== chat);
    this.save();
  }

  clear() {
    this.all = [];
    this.save();
  }

  /** Where there is no room, log-probabilities go first, then the oldest chats. Empty chats are not kept. */
  save() {
    let kept = this.all.filter((chat) => chat.messages.length);
    if (write(CHATS, kept)) return;
    kept = kept.map((chat) => ({ ...chat, messages: chat.messages.map(({ tokens, ...message }) => message) }));
    while (!write(CHATS, kept) && kept.length) kept.pop();
  }
}

export const DEFAULTS = {
  system: "",
  sampling: {},
  stop: "",
  thinking: "default",
  tokens: true,
  alternatives: 5,
  panel: true,
  tools: { on: false, text: "" },
  schema: { on: false, text: "" },
};

export function loadSettings() {
  return { ...structuredClone(DEFAULTS), ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
  write(SETTINGS, settings);
}
