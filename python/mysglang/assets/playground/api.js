// Speaking to the server that this page came from, and to no other. Knows the keys, and nothing of chats.

const KEYS = { api: "mysglang.api-key", admin: "mysglang.admin-key" };

/** Below whatever path a proxy shows the server under: the page is at / or /playground, its siblings are the routes. */
const address = (path) => new URL(path, document.baseURI);

/** An answer that is no success. `status` is 0 if there was none at all. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key that the user typed in for this tab; empty if there is none. */
export const keyOf = (kind) => sessionStorage.getItem(KEYS[kind]) ?? "";

export function keepKey(kind, key) {
  if (key) sessionStorage.setItem(KEYS[kind], key);
  else sessionStorage.removeItem(KEYS[kind]);
}

/** JSON from a path. `admin`: send the admin key if there is one. Raises ApiError. */
export async function get(path, { admin = false, signal } = {}) {
  const response = await ask(path, { signal }, admin);
  return response.json();
}

/** The frames of a streamed answer, as objects. Raises ApiError, also for an error frame within the stream. */
export async function* stream(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      const data = frame.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const told = JSON.parse(data);
      if (told.error) throw new ApiError(told.error.code ?? 500, told.error.message);
      yield told;
    }
  }
}

async function ask(path, options, admin = false) {
  const key = (admin && keyOf("admin")) || keyOf("api");
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(address(path), { ...options, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new ApiError(response.status, told.error?.message ?? told.message ?? `The server answered ${response.status}.`);
}
