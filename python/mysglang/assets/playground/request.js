// From settings and messages to the body of POST /v1/chat/completions. Knows no page.

/** The sampling fields of the settings panel. An empty one is not sent, so that the server's default holds. */
export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, help: "0 always takes the likeliest token." },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, help: "Keeps the likeliest tokens up to this sum." },
  { name: "top_k", label: "Top k", min: -1, max: 1000000, step: 1, help: "Keeps this many tokens; -1 keeps all." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, help: "Drops tokens below this part of the likeliest." },
  { name: "max_tokens", label: "Max tokens", min: 1, max: 10000000, step: 1, help: "Longest answer." },
  { name: "seed", label: "Seed", min: 0, max: 4294967295, step: 1, help: "The same seed draws the same tokens." },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, help: "Per time that a token was used." },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, help: "Once for a token that was used." },
  { name: "min_tokens", label: "Min tokens", min: 0, max: 10000000, step: 1, help: "Shortest answer." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: 0.05, help: "Above 1 repeats less." },
];

/** A setting that cannot be sent; the message says which, and why. */
export class BadSetting extends Error {}

export function chatRequest(settings, chat, model) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = { model, messages: [...system, ...chat.messages.map(wire)], stream: true, stream_options: { include_usage: true } };
  for (const { name, label, min, max, step } of FIELDS) {
    const written = settings.sampling[name];
    if (written === undefined || written === "") continue;
    const value = Number(written);
    const whole = step !== 1 || Number.isInteger(value);
    if (!Number.isFinite(value) || value < min || value > max || !whole)
      throw new BadSetting(`${label} must be a ${step === 1 ? "whole " : ""}number from ${min} to ${max}.`);
    body[name] = value;
  }
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (settings.thinking !== "default") body.enable_thinking = settings.thinking === "on";
  if (settings.tokens) Object.assign(body, { logprobs: true, top_logprobs: settings.alternatives });
  if (settings.tools.on) body.tools = toolsOf(settings.tools.text);
  if (settings.schema.on) {
    const schema = schemaOf(settings.schema.text);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  return body;
}

/** What the server is told of a message; what only the page knows stays here. */
function wire({ role, content, calls, call_id: id }) {
  if (role === "tool") return { role, content, tool_call_id: id };
  if (!calls?.length) return { role, content };
  const called = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  return { role, content: content || null, tool_calls: called };
}

/** Tools as OpenAI writes them, or as functions alone, which are wrapped. Raises BadSetting. */
export function toolsOf(text) {
  const told = parsed(text, "Tools");
  const list = Array.isArray(told) ? told : [told];
  for (const [at, tool] of list.entries()) {
    const named = tool?.function?.name ?? tool?.name;
    if (typeof named !== "string" || !named) throw new BadSetting(`Tools: number ${at + 1} has no name.`);
  }
  return list.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
}

/** Raises BadSetting. */
export function schemaOf(text) {
  const told = parsed(text, "Schema");
  if (told === null || typeof told !== "object" || Array.isArray(told)) throw new BadSetting("Schema: must be an object.");
  return told;
}

function parsed(text, name) {
  if (!text.trim()) throw new BadSetting(`${name}: nothing is written there.`);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BadSetting(`${name}: this is not JSON. ${error.message}`);
  }
}
