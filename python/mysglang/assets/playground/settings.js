// The settings panel: what is typed there is kept at once. Knows the fields, and not what becomes of them.

import { $, el } from "./dom.js";
import { saveSettings } from "./store.js";
import { BadSetting, FIELDS, schemaOf, toolsOf } from "./request.js";

const TOOLS_EXAMPLE = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "Get the weather for a city.",
      "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"]
      }
    }
  }
]`;

const SCHEMA_EXAMPLE = `{
  "type": "object",
  "properties": {
    "city": {"type": "string"},
    "country": {"type": "string"}
  },
  "required": ["city", "country"],
  "additionalProperties": false
}`;

/** Fills the panel. `changed` is called after each change, with the settings changed and kept. */
export function settingsPanel(settings, changed) {
  const keep = () => {
    saveSettings(settings);
    changed();
  };
  $("panel-sampling").append(...samplingPanel(settings, keep));
  $("panel-tools").append(
    ...jsonPanel({
      state: settings.tools,
      keep,
      id: "tools",
      label: "Let the model call tools",
      help: "A list of functions, as OpenAI's API takes them. You play the tools: type in what each call returns.",
      example: TOOLS_EXAMPLE,
      check: (text) => (toolsOf(text).length === 1 ? "1 tool" : `${toolsOf(text).length} tools`),
    }),
  );
  $("panel-schema").append(
    ...jsonPanel({
      state: settings.schema,
      keep,
      id: "schema",
      label: "Hold the answer to this JSON schema",
      help: "The answer is JSON that this schema allows, whatever the model would like to say.",
      example: SCHEMA_EXAMPLE,
      check: (text) => (schemaOf(text), "A schema"),
    }),
  );
  tabs(document.querySelector(".tabs"));
}

function samplingPanel(settings, keep) {
  const system = el("textarea", { id: "system", rows: 4, placeholder: "You are a helpful assistant." });
  system.value = settings.system;
  system.addEventListener("input", () => {
    settings.system = system.value;
    keep();
  });
  const stop = el("textarea", { id: "stop", rows: 2, placeholder: "one on each line" });
  stop.value = settings.stop;
  stop.addEventListener("input", () => {
    settings.stop = stop.value;
    keep();
  });
  const thinking = el("select", { id: "thinking" }, ["default", "on", "off"].map((value) => el("option", { value }, value)));
  thinking.value = settings.thinking;
  thinking.addEventListener("change", () => {
    settings.thinking = thinking.value;
    keep();
  });
  const alternatives = el("input", { id: "top-logprobs", type: "number", min: 0, max: 20, step: 1 });
  alternatives.value = settings.alternatives;
  alternatives.addEventListener("input", () => {
    if (!alternatives.validity.valid || alternatives.value === "") return;
    settings.alternatives = Number(alternatives.value);
    keep();
  });
  const reset = el("button", { type: "button", class: "quiet" }, "Reset to the defaults");
  reset.addEventListener("click", () => {
    settings.sampling = {};
    for (const { name } of FIELDS) $(`field-${name}`).value = "";
    keep();
  });
  return [
    field("system", "System prompt", system),
    el("div", { class: "grid" }, FIELDS.map((one) => numberField(one, settings, keep))),
    field("stop", "Stop strings", stop),
    el("div", { class: "grid" }, field("thinking", "Thinking", thinking), field("top-logprobs", "Alternatives", alternatives, "Likeliest tokens shown of each.")),
    toggle("tokens", "Ask for the probability of each token", settings.tokens, (on) => {
      settings.tokens = on;
      keep();
    }),
    reset,
  ];
}

function numberField({ name, label, min, max, step, help }, settings, keep) {
  const input = el("input", { id: `field-${name}`, type: "number", min, max, step: step === 1 ? 1 : "any", placeholder: "default", inputmode: "decimal" });
  input.value = settings.sampling[name] ?? "";
  input.addEventListener("input", () => {
    input.setAttribute("aria-invalid", String(!input.validity.valid));
    settings.sampling[name] = input.value;
    keep();
  });
  return field(`field-${name}`, label, input, help);
}

function field(id, label, input, help = "") {
  if (help) input.title = help;
  return el("div", { class: "field" }, el("label", { for: id }, label), input);
}

function toggle(id, label, on, flip) {
  const box = el("input", { id, type: "checkbox", role: "switch" });
  box.checked = on;
  box.addEventListener("change", () => flip(box.checked));
  return el("label", { class: "toggle", for: id }, box, el("span", {}, label));
}

/** A switch, and JSON that is judged while it is written. */
function jsonPanel({ state, keep, id, label, help, example, check }) {
  const text = el("textarea", { id: `${id}-json`, class: "code", rows: 16, spellcheck: "false", placeholder: example, "aria-label": `${id} as JSON` });
  const verdict = el("p", { class: "verdict small", role: "status" });
  const judge = () => {
    verdict.textContent = "";
    verdict.classList.remove("wrong");
    if (!text.value.trim()) return;
    try {
      verdict.textContent = `${check(text.value)}, well formed.`;
    } catch (error) {
      if (!(error instanceof BadSetting)) throw error;
      verdict.textContent = error.message;
      verdict.classList.add("wrong");
    }
  };
  text.value = state.text;
  text.addEventListener("input", () => {
    state.text = text.value;
    judge();
    keep();
  });
  const use = el("button", { type: "button", class: "quiet" }, "Use the example");
  use.addEventListener("click", () => {
    text.value = example;
    text.dispatchEvent(new Event("input"));
  });
  judge();
  const flip = (on) => {
    state.on = on;
    keep();
  };
  return [toggle(`${id}-on`, label, state.on, flip), el("p", { class: "muted small" }, help), text, verdict, use];
}

/** Tabs by the pattern that screen readers know: arrow keys move, one tab stop for all. */
function tabs(list) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const choose = (chosen) => {
    for (const tab of all) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      $(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  for (const tab of all) tab.addEventListener("click", () => choose(tab));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    choose(next);
    next.focus();
  });
}
