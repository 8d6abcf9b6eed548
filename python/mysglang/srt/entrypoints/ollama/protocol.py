"""The requests of Ollama's API, as clients may send them.

Options that say how to load a model are refused, because the model is loaded already. `keep_alive` is honoured by a
server that always keeps its model, unless it asks for the contrary.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from mysglang.srt.entrypoints.openai.protocol import MAX_TOP_LOGPROBS
from mysglang.srt.entrypoints.openai.tool_protocol import Tool
from mysglang.srt.entrypoints.sampling_body import OllamaSampling, Texts
from mysglang.srt.entrypoints.strict_model import StrictModel, not_here
from mysglang.srt.errors import InvalidRequest

_DURATION = re.compile(r"|[+-]?(\d+(\.\d*)?|(\d+(\.\d*)?(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
"""A number of seconds, or numbers with units as in `1h30m`; empty for Ollama's default."""


def _num_predict(value: int) -> int:
    if value < 1 and value not in (-1, -2):
        raise ValueError("must be at least 1, or -1 or -2 for as many tokens as fit")
    return value


def _format(value: object) -> object:
    if value in ("", "json") or isinstance(value, dict):
        return value
    raise ValueError("must be 'json' or a JSON schema")


def _keep_alive(value: object) -> object:
    if isinstance(value, str):
        known, nothing = _DURATION.fullmatch(value) is not None, bool(value) and re.search("[1-9]", value) is None
    else:
        known, nothing = isinstance(value, int | float) and not isinstance(value, bool), value == 0
    if not known:
        raise ValueError("must be a duration: a number of seconds, or a text such as 5m or 1h30m")
    if nothing:
        raise ValueError("this server cannot unload its model")
    return value


Format = Annotated[str | dict[str, Any], PlainValidator(_format, json_schema_input_type=str | dict[str, Any])]
ContextTokens = Annotated[int, Field(ge=1)] | None
KeepAlive = Annotated[float | str, PlainValidator(_keep_alive, json_schema_input_type=float | str)]


KEPT_WHOLE = not_here("truncate", "shift", unless=(True,))
"""Ollama's defaults cut what is too long. Here a prompt that fits is never cut, and one that does not is refused."""


class Options(OllamaSampling):
    """Sampling options. `repeat_penalty` considers all tokens so far, as `repeat_last_n` -1 says."""

    num_predict: Annotated[int, AfterValidator(_num_predict)] = -1
    num_ctx: ContextTokens = None
    """Tokens of context that the request needs; more than the model has are refused."""
    unsupported = {
        **not_here("tfs_z", "typical_p", unless=(1, 1.0)),
        **not_here("mirostat", unless=(0,)),
        **not_here("logits_all", "vocab_only", "embedding_only"),
    }
    idle = {
        **not_here("repeat_last_n", unless=(-1,)),
        **not_here("mirostat_tau", "mirostat_eta", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread"),
        **not_here("draft_num_predict", "use_mmap", "penalize_newline", unless=(True,)),
        **not_here("numa", "low_vram", "f16_kv", "use_mlock"),
    }
    """Options that load a model in Ollama, and small differences in how tokens are counted and drawn."""


class EmbedOptions(StrictModel):
    """Options beside a prompt that becomes a vector. Nothing is sampled, so what says how to sample changes nothing."""

    num_ctx: ContextTokens = None
    """Tokens of context that the request needs; more than the model has are refused."""
    idle = {
        **not_here(*(name for name in Options.model_fields if name != "num_ctx")),
        **Options.unsupported,
        **Options.idle,
    }


class OllamaRequest(StrictModel):
    """The common part of both bodies that ask for generated text."""

    model: str
    stream: bool = True
    format: Format | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    options: Options = Options()
    keep_alive: KeepAlive | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> OllamaRequest:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs: only with logprobs=true.", param="top_logprobs")
        return self


class OllamaFunction(StrictModel):
    """The function that an earlier answer called, and its arguments."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class OllamaToolCall(StrictModel):
    """A tool call in an earlier answer."""

    function: OllamaFunction
    id: str | None = None
    type: Literal["function"] = "function"


class OllamaMessage(StrictModel):
    """One message of the conversation so far."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[OllamaToolCall] = []
    tool_name: str | None = None
    tool_call_id: str | None = None
    unsupported = not_here("images", unless=([],))

    @model_validator(mode="after")
    def _only_assistants_call(self) -> OllamaMessage:
        if self.role != "assistant" and (self.tool_calls or self.thinking is not None):
            raise ValueError("only messages of the assistant have tool_calls and thinking")
        return self


class OllamaChatRequest(OllamaRequest):
    """Body of POST /api/chat. Without messages, the request only checks that the model is there."""

    messages: list[OllamaMessage] = []
    tools: list[Tool] = []
    idle = KEPT_WHOLE


class OllamaGenerateRequest(OllamaRequest):
    """Body of POST /api/generate. Without a prompt, the request only checks that the model is there."""

    prompt: str = ""
    suffix: str = ""
    """Text after the answer, for a model that was trained to fill in the middle; the chat template is not used then."""
    system: str = ""
    raw: bool = False
    """If true, the prompt is complete and needs no chat template."""
    unsupported = {
        **not_here("template", unless=("",)),
        **not_here("images", "context", unless=([],)),
        **not_here("width", "height", "steps"),
    }
    idle = KEPT_WHOLE

    @model_validator(mode="after")
    def _raw_is_all_there_is(self) -> OllamaGenerateRequest:
        if self.plain and (self.system or self.think):
            field = "system" if self.system else "think"
            why = "raw=true" if self.raw else "a suffix"
            raise InvalidRequest(f"{field}: not with {why}, which leaves the chat template out.", param=field)
        return self

    @property
    def plain(self) -> bool:
        """True if the chat template is not used."""
        return self.raw or bool(self.suffix)


class OllamaShowRequest(StrictModel):
    """Body of POST /api/show."""

    model: str
    verbose: bool = False
    without_effect = frozenset({"verbose"})
    unsupported = {**not_here("system", "template", unless=("",)), **not_here("options", unless=({},))}


class OllamaEmbedRequest(StrictModel):
    """Body of POST /api/embed."""

    model: str
    input: Texts
    dimensions: int | None = None
    keep_alive: KeepAlive | None = None
    options: EmbedOptions = EmbedOptions()
    """Options of Ollama, of which only `num_ctx` concerns a vector."""
    idle = KEPT_WHOLE


class OllamaEmbeddingsRequest(StrictModel):
    """Body of POST /api/embeddings, the older route, for one prompt."""

    model: str
    prompt: str
    keep_alive: KeepAlive | None = None
    options: EmbedOptions = EmbedOptions()
    """Options of Ollama, of which only `num_ctx` concerns a vector."""
