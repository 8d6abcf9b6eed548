// One answer as it streams in: frames of /v1/chat/completions gathered into a message. Knows no page.

import { stream } from "./api.js";
import { tokenOf } from "./token_view.js";

const MEASURABLE = 100; // ms

/** Fills `message` from the stream, and calls `grew` after each frame. Raises what `stream` raises. */
export async function receive(body, message, signal, grew) {
  const begun = performance.now();
  let first;
  let latest = begun;
  for await (const frame of stream("v1/chat/completions", body, signal)) {
    if (frame.usage) usage(message, frame.usage);
    const choice = frame.choices?.[0];
    if (!choice) continue;
    if (add(message, choice)) {
      latest = performance.now();
      first ??= latest;
    }
    if (choice.finish_reason) message.finish = choice.finish_reason;
    grew();
  }
  const figures = (message.figures ??= {});
  if (first === undefined) return;
  figures.first_ms = first - begun;
  // A short answer may come in one piece, whose speed says nothing.
  if (figures.tokens > 1 && latest - first > MEASURABLE) figures.rate = ((figures.tokens - 1) * 1000) / (latest - first);
}

/** Whether the frame brought something to read. */
function add(message, { delta = {}, logprobs }) {
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.thought = (message.thought ?? "") + delta.reasoning_content;
  for (const part of delta.tool_calls ?? []) {
    const call = ((message.calls ??= [])[part.index] ??= { id: "", name: "", arguments: "" });
    call.id ||= part.id ?? "";
    call.name ||= part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  if (logprobs?.content) (message.tokens ??= []).push(...logprobs.content.map(tokenOf));
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls || logprobs?.content?.length);
}

function usage(message, told) {
  const figures = (message.figures ??= {});
  figures.tokens = told.completion_tokens;
  figures.prompt = told.prompt_tokens;
  figures.cached = told.prompt_tokens_details?.cached_tokens;
}
