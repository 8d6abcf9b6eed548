"""The requests of the OpenAI-compatible API, as clients may send them.

Beside the fields that are honoured there are those of OpenAI and SGLang that are not served (`unsupported`) and the
client's own bookkeeping, which is taken and changes nothing: user, metadata, safety_identifier, prompt_cache_key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PlainValidator, ValidationInfo, model_validator

from mysglang.srt.entrypoints.field_bounds import MAX_FIELDS, check_joined
from mysglang.srt.entrypoints.openai.prompt_types import Prompts, TokenIds
from mysglang.srt.entrypoints.openai.response_format import (
    ResponseFormat,
    StructuredOutputs,
    as_schema,
    choice_regex,
    names_of,
)
from mysglang.srt.entrypoints.openai.tool_protocol import NamedToolChoice, Tool
from mysglang.srt.entrypoints.sampling_body import OPENAI_ALIASES, WITHOUT_EFFECT, OpenAISampling, Texts
from mysglang.srt.entrypoints.strict_model import StrictModel, empty, not_here, sent_names
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.generate import NO_NAMES, REFUSED, FieldReport

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
USUAL_EFFORT: ReasoningEffort = "medium"

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Names of the switch in templates: Qwen's and GLM's, and DeepSeek's."""

AS_MANY_AS_FIT = 1 << 30
"""Tokens: more than any context."""

MAX_TOP_LOGPROBS = 20
"""OpenAI's bound; the native route allows more."""


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""A client's own words about an object that is kept for it, with OpenAI's bounds."""


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    idle = not_here("include_obfuscation")


_NO_GRAMMARS = (None,) * 5


class GenerationRequest(OpenAISampling):
    """The common part of chat and plain completions: the declared fields, and these."""

    model: str | None = None
    use_beam_search: bool = False
    """If true, beam search with as many beams as answers are generated (vLLM's field)."""
    custom_logit_processor: str | None = None
    return_hidden_states: bool | Literal["last"] = False
    """If true, each choice contains the hidden state from which its last token was sampled."""
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | str | None = None
    """The schema that the answer satisfies, as an object or as its text."""
    regex: str | None = None
    ebnf: str | None = None
    guided_choice: list[str] | None = None
    """The only texts that the answer may be."""
    structured_outputs: StructuredOutputs | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    """Options of a stream. Without `stream` they have no effect."""
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    user: str | None = None
    metadata: dict[str, Any] = empty(dict)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    without_effect = WITHOUT_EFFECT | {"user", "metadata", "safety_identifier", "prompt_cache_key"}

    aliases = {
        **OPENAI_ALIASES,
        # vLLM's
        "guided_json": "json_schema",
        "guided_regex": "regex",
        "guided_grammar": "ebnf",
        "request_id": "rid",
        # llama.cpp's
        "grammar": "ebnf",
        "n_predict": "max_tokens",
    }
    idle = {
        # OpenAI's
        **not_here("store", "verbosity", "prompt_cache_retention", "prompt_cache_options"),
        **not_here("service_tier", unless=("auto", "default")),
        # SGLang's
        **not_here("custom_labels", "kv_hints"),
        **not_here("images_config", "mm_processor_kwargs", "video_config", "max_dynamic_patch", "min_dynamic_patch"),
        **not_here("routed_dp_rank", "data_parallel_rank", "routed_experts_start_len", unless=(0,)),
        # vLLM's
        **not_here("guided_decoding_backend", "guided_whitespace_pattern"),
        # llama.cpp's: how to compute, and what only belongs to a sampler that is off
        **not_here("cache_prompt", unless=(True,)),
        **not_here("id_slot", unless=(-1,)),
        **not_here("n_keep", "n_discard", "min_keep", unless=(0,)),
        **not_here("timings_per_token", "return_progress", "penalize_nl", "samplers"),
        **not_here("repeat_last_n", "dry_penalty_last_n", unless=(-1,)),
        **not_here("mirostat_tau", unless=(5, 5.0)),
        **not_here("mirostat_eta", "xtc_threshold", unless=(0.1,)),
        **not_here("dynatemp_exponent", unless=(1, 1.0)),
        **not_here("dry_base", "dry_allowed_length", "dry_sequence_breakers"),
    }

    _sent_names: Mapping[str, str] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _note_names(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(data)
        if isinstance(data, dict):
            made._sent_names = sent_names(cls.aliases, data)
        return made

    @property
    def sent_names(self) -> Mapping[str, str]:
        """Maps our names of fields to other servers' names that the client used."""
        return self._sent_names or NO_NAMES

    @property
    def own_grammars(self) -> dict[str, str]:
        """The grammars that the request gives directly, by the parameter's name."""
        if (self.json_schema, self.regex, self.ebnf, self.guided_choice, self.structured_outputs) == _NO_GRAMMARS:
            return {}  # as in most requests
        ways: list[Mapping[str, str | None]] = [
            {"json_schema": as_schema(self.json_schema)},
            {"regex": self.regex},
            {"ebnf": self.ebnf},
            {"regex": None if self.guided_choice is None else choice_regex(self.guided_choice)},
            {} if self.structured_outputs is None else self.structured_outputs.grammars(),
        ]
        given = [{name: text for name, text in way.items() if text is not None} for way in ways]
        named = [way for way in given if way]
        if len(named) > 1:
            words = "json_schema, regex, ebnf, guided_choice and structured_outputs"
            raise InvalidRequest(f"{words}: only one of them can say what the answer must be.", param="regex")
        return named[0] if named else {}

    @property
    def grammar_names(self) -> dict[str, str]:
        """Maps the parameters of grammars to the field that this client sent, if that has another name."""
        if self.response_format is not None:
            return names_of(self.response_format)
        if self.guided_choice is not None:
            return {"regex": "guided_choice"}
        if self.structured_outputs is not None:
            return dict.fromkeys(self.structured_outputs.grammars(), "structured_outputs")
        return {}

    def grammar_field(self, kind: str) -> str:
        """Returns the field in which this client sent the grammar of that kind."""
        return self.grammar_names.get(kind, kind)

    @property
    def beams(self) -> int | None:
        """Number of beams; None without beam search."""
        if self.use_beam_search:
            return self.beam_width or getattr(self, "best_of", None) or self.n
        return None if self.beam_width == 1 else self.beam_width

    @classmethod
    def translated(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Translates llama.cpp's negative number of tokens, which means as many tokens as fit."""
        most = data.get("n_predict")
        return {**data, "n_predict": AS_MANY_AS_FIT} if type(most) is int and most < 0 else data


_UNSUPPORTED_EVERYWHERE = {
    # SGLang's
    **not_here("return_routed_experts", "return_cached_tokens_details", "return_spec_tokens_details"),
    **not_here("structural_tag", "lora_path", "session_id", "session_params", "watermark"),
    **not_here("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "disagg_prefill_dp_rank"),
    # vLLM's
    **not_here("prompt_logprobs", "prompt_embeds", "logits_processors", "kv_transfer_params", "vllm_xargs"),
    **not_here("return_tokens_as_token_ids", "repetition_detection"),
    **not_here("truncate_prompt_tokens", unless=(-1,)),
    # llama.cpp's
    **not_here("typical_p", "tfs_z", unless=(1, 1.0)),
    **not_here("mirostat", "dynatemp_range", "xtc_probability", "dry_multiplier", "n_indent", unless=(0, 0.0)),
    **not_here("top_n_sigma", unless=(-1, -1.0)),
    **not_here("t_max_predict_ms", unless=(0, -1)),
    **not_here("n_probs", unless=(0,)),
    **not_here("lora", "image_data", "post_sampling_probs", "return_tokens", "response_fields"),
}


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] = 16
    suffix: str | None = None
    """Text that follows the answer, for models that fill in the middle. Prompts must be texts then. Empty: none."""
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: int | None = None
    """How many answers are generated for each prompt; the `n` likeliest are returned."""
    return_token_ids: bool = False
    rid: Texts | None = None
    unsupported = {**_UNSUPPORTED_EVERYWHERE, **not_here("add_special_tokens", unless=(True,))}

    @model_validator(mode="after")
    def _best_of_holds_n(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequest(f"best_of: must be at least n ({self.n}), got {self.best_of}.", param="best_of")
        if self.stream and self.best_of not in (None, self.n):
            message = f"best_of: which answers are the best is known only at the end; in a stream it is n ({self.n})."
            raise InvalidRequest(message, param="best_of")
        return self

    @model_validator(mode="after")
    def _a_suffix_needs_texts(self) -> CompletionRequest:
        if not self.suffix:
            return self
        if not all(isinstance(prompt, str) for prompt in self.prompt):
            raise InvalidRequest("suffix: the prompt before it must be a text.", param="suffix")
        check_joined("suffix", self.suffix, len(self.prompt))
        if self.echo:
            raise InvalidRequest("echo: not together with suffix, where the prompt is not all of it.", param="echo")
        return self

    @property
    def candidates(self) -> int:
        """Number of answers that are generated for each prompt, to choose the best from. With beam search, which
        chooses by itself, it is `n`.
        """
        return self.n if self.best_of is None or self.beams is not None else self.best_of


class ReasoningOptions(StrictModel):
    """Another form of `reasoning_effort`."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    """True switches thinking on, false off. Without an effort, the model thinks as hard as usual."""


class ThinkingSwitch(StrictModel):
    """Switches thinking on or off, in the form that clients of DeepSeek, GLM and Anthropic send."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    idle = not_here("budget_tokens", "clear_thinking")

    @property
    def on(self) -> bool | None:
        """True or false if the client decides; None if the model decides."""
        return {"enabled": True, "disabled": False}.get(self.type)


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    chat_template_kwargs: dict[str, Any] = empty(dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    tools: list[Tool] = empty(list)
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice = "auto"
    parallel_tool_calls: bool = True
    separate_reasoning: bool = True
    """If true, thoughts are returned separately from the answer. Needs a server with a reasoning parser."""
    stream_reasoning: bool = True
    """If true, a stream sends thoughts as they are written, instead of each in one piece."""
    reasoning_effort: ReasoningEffort | None = None
    reasoning: ReasoningOptions | None = None
    return_token_ids: bool = False
    """If true, choices contain the ids of their tokens and of the prompt's."""
    return_prompt_token_ids: bool = False
    """If true, choices contain the ids of the prompt's tokens."""
    max_thinking_tokens: int | None = None
    """Number of tokens after which a thought is ended."""
    enable_thinking: bool | None = None
    """True switches thinking on, false off, if the chat template has a switch for it."""
    thinking: ThinkingSwitch | bool | None = None
    """`enable_thinking` as other servers write it."""
    rid: str | None = None
    aliases = {**GenerationRequest.aliases, "thinking_token_budget": "max_thinking_tokens"}
    idle = {
        **GenerationRequest.idle,
        **not_here("prediction", "task", "use_audio_in_video"),
        **not_here("chat_template_content_format", unless=("auto", "string", "openai")),
        **not_here("reasoning_format", unless=("auto", "deepseek", "deepseek-legacy")),
        **not_here("parse_tool_calls", unless=(True,)),
        **not_here("reasoning_in_content"),
    }
    unsupported = {
        **not_here("moderation"),
        **_UNSUPPORTED_EVERYWHERE,
        **not_here("add_special_tokens", "echo", "documents"),
        **not_here("include_reasoning", unless=(True,)),
        **not_here("functions", unless=([],)),
        **not_here("function_call", unless=("none", "auto")),
        **not_here("modalities", unless=(["text"],)),
        **not_here("audio", "web_search_options", "input_ids", "chat_template"),
        **not_here("input_ids_in_sglext", "output_ids_in_sglext", "return_meta_info", "return_sampling_mask"),
    }

    @classmethod
    def translated(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Translates llama.cpp's format `none`, which means that thoughts stay in the answer."""
        data = super().translated(data)
        return {**data, "separate_reasoning": False} if data.get("reasoning_format") == "none" else data

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs: only with logprobs=true.", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = "max_tokens and max_completion_tokens differ; send max_completion_tokens alone."
            raise InvalidRequest(message, param="max_tokens")
        if None not in (self.reasoning, self.reasoning_effort) and self.effort != self.reasoning_effort:
            raise InvalidRequest("reasoning and reasoning_effort differ; send one of them.", param="reasoning")
        self._thinking_agrees()
        return self

    def _thinking_agrees(self) -> None:
        """Raises InvalidRequest if two fields switch thinking on and off."""
        if self.enable_thinking is None and self.thinking is None and not self.chat_template_kwargs:
            return  # as in most requests: none of these switches it on
        kwargs = ((f"chat_template_kwargs.{name}", self.chat_template_kwargs.get(name)) for name in THINKING_SWITCHES)
        said = {
            "enable_thinking": self.enable_thinking,
            "thinking": self._switched,
            **{name: value for name, value in kwargs if isinstance(value, bool)},
            # An effort asks for thoughts only if there are some: beside a switch that is off it means nothing.
            **({"reasoning_effort" if self.reasoning is None else "reasoning": False} if self.effort == "none" else {}),
        }
        on, off = ([name for name, value in said.items() if value is each] for each in (True, False))
        if on and off:
            raise InvalidRequest(f"{on[0]} switches thinking on, and {off[0]} switches it off.", param=on[0])

    @property
    def own_names(self) -> dict[str, str]:
        """Maps the server's names of fields with two possible names to the name that this client used."""
        return {} if self.max_completion_tokens is None else {"max_new_tokens": "max_completion_tokens"}

    @property
    def thinks(self) -> bool | None:
        """True or False if the request decides about thinking; None if it does not, or if the model may choose."""
        return self.enable_thinking if self.thinking is None else self._switched

    @property
    def _switched(self) -> bool | None:
        """The decision of the field `thinking`, in either of its forms."""
        return self.thinking.on if isinstance(self.thinking, ThinkingSwitch) else self.thinking

    @property
    def effort(self) -> ReasoningEffort | None:
        """How hard to think; None if the request does not say."""
        if self.reasoning is None:
            return self.reasoning_effort
        if self.reasoning.enabled is False:
            return "none"
        return self.reasoning.effort or (USUAL_EFFORT if self.reasoning.enabled else None)


class TextPart(StrictModel):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


def _content(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of content parts")
    report: FieldReport = REFUSED if info.context is None else info.context
    return [_text_part(place, part, report) for place, part in enumerate(value)]


def _text_part(place: int, part: object, report: FieldReport) -> object:
    """Returns a part without the fields that have no effect, as every StrictModel does. A conversation may have many
    thousands of parts: a model for each takes several times longer.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind != "text":
        raise ValueError(f"part {place} is of type {kind!r}; this server reads parts of type 'text' only")
    if not isinstance(text := part.get("text"), str):
        raise ValueError(f'part {place} must be {{"type": "text", "text": "..."}}')
    if len(part) == len(TextPart.model_fields):
        return part
    if len(part) > MAX_FIELDS:
        raise ValueError(f"part {place} must have at most {MAX_FIELDS} fields, got {len(part)}")
    for name in part.keys() - TextPart.model_fields.keys():
        if not report.unknown(name):
            raise ValueError(f"part {place}: {name}: this server does not know the field")
    return {"type": kind, "text": text}


ContentTypes = str | list[TextPart]
Content = Annotated[str | list[dict[str, str]], PlainValidator(_content, json_schema_input_type=ContentTypes)]


class CalledFunction(StrictModel):
    """The function that an earlier answer called."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(StrictModel):
    """A tool call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(StrictModel):
    """One message of the conversation so far."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = empty(list)
    tool_call_id: str | None = None
    unsupported = not_here("audio", "refusal", "function_call", "annotations", unless=([],))

    @property
    def text(self) -> str:
        """The text of the content, whether it is one or several parts."""
        return self.content if isinstance(self.content, str) else "".join(part["text"] for part in self.content or ())

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.reasoning_content)):
            raise ValueError("content is required")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: only an assistant message has them, not a {self.role} message")
        return self


class TokenizeRequest(StrictModel):
    """Body of POST /tokenize: a prompt, several prompts, or a conversation."""

    model: str | None = None
    prompt: Texts | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[Tool] = empty(list)
    chat_template_kwargs: dict[str, Any] = empty(dict)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Exactly one of prompt and messages is required.", param="prompt")
        if self.messages is not None:
            if "add_special_tokens" in self.model_fields_set and self.add_special_tokens:
                message = "add_special_tokens: the chat template of messages writes them; leave it out."
                raise InvalidRequest(message, param="add_special_tokens")
            return self
        unset = TokenizeRequest.model_construct()
        for name in ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"):
            if getattr(self, name) != getattr(unset, name):
                raise InvalidRequest(f"{name}: is for messages, not for a prompt; leave it out.", param=name)
        return self


class DetokenizeRequest(StrictModel):
    """Body of POST /detokenize: the ids of a text, or of several."""

    model: str | None = None
    tokens: TokenIds
    skip_special_tokens: bool = True
