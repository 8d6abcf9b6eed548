"""How each kind of server is asked, and how its answer is read. Knows SGLang's native API and OpenAI's; no transport.

A reader is given one frame at a time: the payload of a server-sent event, or the whole body of a plain answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from mysglang.bench.prompts import Prompt
from mysglang.bench.records import RequestRecord
from mysglang.bench.refused import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """Options that are the same in all requests of a run."""

    model: str
    stream: bool = True
    ignore_eos: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)
    """Goes over the body, and within its inner objects over theirs."""


class Backend(Protocol):
    path: str

    def body(self, prompt: Prompt, options: AskOptions) -> dict[str, Any]: ...

    def read(self, frame: bytes, now: float, record: RequestRecord) -> None:
        """Adds the text and the counts of one frame to `record`. Raises msgspec.DecodeError for other frames."""
        ...


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | str | None = None


class _NativeFrame(msgspec.Struct):
    text: str | None = None
    meta_info: _Meta | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class NativeBackend:
    """Reads frames of SGLang's /generate. Each frame holds the text so far, and the number of its tokens."""

    path = "/generate"

    def __init__(self, *, incremental: bool = False) -> None:
        """`incremental`: True if the server was started with --incremental-streaming-output. Then each chunk has only
        the new text, not the whole text so far.
        """
        self._incremental = incremental
        self._decoder = msgspec.json.Decoder(_NativeFrame)

    def body(self, prompt: Prompt, options: AskOptions) -> dict[str, Any]:
        content = {"text" if isinstance(prompt.content, str) else "input_ids": prompt.content}
        sampling = {
            "temperature": options.temperature,
            "top_p": options.top_p,
            "max_new_tokens": prompt.output_len,
            "ignore_eos": options.ignore_eos,
        }
        return _over({**content, "sampling_params": sampling, "stream": options.stream}, options.extra)

    def read(self, frame: bytes, now: float, record: RequestRecord) -> None:
        found = self._decoder.decode(frame)
        if failed := _error(found.error):
            record.error = failed
            return
        if (meta := found.meta_info) is None:
            record.error = "a frame without meta_info"
            return
        if new := meta.completion_tokens - record.output_tokens:
            record.arrivals.append((now, new))
            record.output_tokens = meta.completion_tokens
        if found.text is not None:
            record.text = record.text + found.text if self._incremental else found.text
        record.cached_tokens = meta.cached_tokens
        if meta.prompt_tokens is not None:
            record.prompt_tokens = meta.prompt_tokens
        if isinstance(meta.finish_reason, dict) and meta.finish_reason.get("type") == "abort":
            record.error = str(meta.finish_reason.get("message") or "aborted")


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Message | None = None
    message: _Message | None = None

    @property
    def said(self) -> str:
        message = self.delta or self.message
        if message is None:
            return self.text or ""
        return (message.reasoning_content or "") + (message.content or "")


class _OpenAIFrame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class _OpenAIBackend:
    """Reads frames of OpenAI's routes. They hold pieces of text without token counts, so each piece counts as one token
    until the usage arrives.
    """

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_OpenAIFrame)

    def read(self, frame: bytes, now: float, record: RequestRecord) -> None:
        found = self._decoder.decode(frame)
        if failed := _error(found.error):
            record.error = failed
            return
        for choice in found.choices:
            if said := choice.said:
                record.arrivals.append((now, 1))
                record.text += said
                record.output_tokens += 1
        if found.usage is not None:
            self._read_usage(found.usage, record)

    def _read_usage(self, usage: _Usage, record: RequestRecord) -> None:
        if usage.completion_tokens is not None:
            record.output_tokens = usage.completion_tokens
        if usage.prompt_tokens is not None:
            record.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens


class CompletionsBackend(_OpenAIBackend):
    path = "/v1/completions"

    def body(self, prompt: Prompt, options: AskOptions) -> dict[str, Any]:
        body = {"prompt": prompt.content, "max_tokens": prompt.output_len, **_common(options)}
        return _over(body, options.extra)


class ChatBackend(_OpenAIBackend):
    path = "/v1/chat/completions"

    def body(self, prompt: Prompt, options: AskOptions) -> dict[str, Any]:
        if not isinstance(prompt.content, str):
            raise Refused("a chat has no token ids: leave out --tokenize-prompt.")
        messages = [{"role": "user", "content": prompt.content}]
        body = {"messages": messages, "max_completion_tokens": prompt.output_len, **_common(options)}
        return _over(body, options.extra)


BACKENDS: dict[str, type[NativeBackend | CompletionsBackend | ChatBackend]] = {
    "sglang": NativeBackend,
    "sglang-native": NativeBackend,
    "sglang-oai": CompletionsBackend,
    "sglang-oai-chat": ChatBackend,
    "vllm": CompletionsBackend,
    "vllm-chat": ChatBackend,
}


def make_backend(name: str, *, incremental: bool = False) -> Backend:
    """Returns the backend of that name; `incremental`: how a native server streams."""
    kind = BACKENDS[name]
    return NativeBackend(incremental=incremental) if kind is NativeBackend else kind()


def _error(raw: msgspec.Raw) -> str:
    """Returns the error message of a frame; empty if the field is absent or null."""
    text = bytes(raw).decode(errors="replace")
    return "" if text == "null" else text


def _common(options: AskOptions) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if options.stream else {}
    return {
        "model": options.model,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "ignore_eos": options.ignore_eos,
        "stream": options.stream,
        **usage,
    }


def _over(body: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Returns `extra` merged into `body`; where both have an object under one key, the two objects are merged."""
    objects = ((name, value) for name, value in extra.items() if isinstance(value, dict))
    both = {name: body[name] | value for name, value in objects if isinstance(body.get(name), dict)}
    return body | extra | both
