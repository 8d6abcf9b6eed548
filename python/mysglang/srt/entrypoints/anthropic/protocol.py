"""The requests of Anthropic's messages API, as clients may send them.

Marks for a prompt cache (`cache_control`) are taken and change nothing: every prompt is cached, as long as there is
room. The same holds for the signature of a thought, which is not checked, and for the client's own bookkeeping
(metadata).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from mysglang.srt.entrypoints.openai.tool_protocol import Name, ObjectSchema
from mysglang.srt.entrypoints.sampling_body import AnthropicSampling
from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.errors import InvalidRequest

Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


MARKS = frozenset({"cache_control"})


class CacheControl(StrictModel):
    """The client's wish that the prompt be cached up to here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"
    without_effect = frozenset({"ttl"})


class TextBlock(StrictModel):
    """Text of a message."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    without_effect = MARKS
    unsupported = not_here("citations", unless=([],))


class ThinkingBlock(StrictModel):
    """A thought of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(StrictModel):
    """A tool call in an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    without_effect = MARKS
    unsupported = {**not_here("caller", unless=({"type": "direct"},)), **not_here("toolset_name")}


def _as_blocks(content: object) -> object:
    """Returns the content as blocks: a string becomes one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]


class ToolResultBlock(StrictModel):
    """Result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks = []
    is_error: bool = False
    cache_control: CacheControl | None = None
    id: str | None = None
    """Another name for `tool_use_id` that some clients use. No other effect."""
    without_effect = MARKS | {"id"}
    unsupported = not_here("toolset_name")

    @classmethod
    def translated(cls, data: dict[str, Any]) -> dict[str, Any]:
        named = data.get("tool_use_id") is not None or data.get("id") is None
        return data if named else {**data, "tool_use_id": data["id"]}


Block: TypeAlias = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
Blocks = Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])]

_KINDS: dict[str, tuple[type, ...]] = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, ToolUseBlock),
}


class Message(StrictModel):
    """One message of the conversation so far."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Blocks, Field(min_length=1)]

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Message:
        for place, block in enumerate(self.content):
            if not isinstance(block, _KINDS[self.role]):
                raise ValueError(f"content.{place}: a message of the {self.role} has no block of type {block.type!r}")
        return self


class AnthropicTool(StrictModel):
    """A tool that the client runs."""

    name: Name
    input_schema: ObjectSchema
    description: str | None = None
    strict: bool = False
    type: Literal["custom"] = "custom"
    cache_control: CacheControl | None = None
    without_effect = MARKS
    idle = not_here("eager_input_streaming", unless=(True,))
    unsupported = {
        **not_here("defer_loading", unless=OFF),
        **not_here("allowed_callers", unless=(["direct"],)),
        **not_here("input_examples", unless=([],)),
    }


class ToolChoice(StrictModel):
    """Rule for the use of tools: the model may, must or must not use them."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _a_tool_has_a_name(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name is for type 'tool', and required there")
        return self


class Thinking(StrictModel):
    """Switch for thinking before the answer. A budget is a target: it is checked, and no thought is cut off."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    unsupported = not_here("display", unless=("summarized",))

    @model_validator(mode="after")
    def _a_budget_is_for_thinking(self) -> Thinking:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens is for type 'enabled', and required there")
        return self


class OutputFormat(StrictModel):
    """The JSON schema that the answer must satisfy."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    """How much effort an answer is worth, and its format."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class Metadata(StrictModel):
    """The client's own bookkeeping."""

    user_id: str | None = None
    without_effect = frozenset({"user_id"})


KEEP_THOUGHTS = {"type": "clear_thinking_20251015", "keep": "all"}
"""An edit of the context that leaves it as it is, which some clients always send."""

_UNSUPPORTED = {
    **not_here("speed", unless=("standard",)),
    **not_here("mcp_servers", unless=([],)),
    **not_here("context_management", unless=({"edits": []}, {"edits": [KEEP_THOUGHTS]})),
    **not_here("container", "inference_geo", "diagnostics", "compaction", "fallbacks"),
    **not_here("fallback_credit_token", "billing_policy", "thread", "user_profile_id", "workspace_id"),
}


class CountTokensRequest(StrictModel):
    """Body of POST /v1/messages/count_tokens: the prompt whose tokens are counted."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    system: TextBlocks = []
    tools: list[AnthropicTool] = []
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None
    """Name of `output_config.format` in the beta of structured outputs."""
    cache_control: CacheControl | None = None
    without_effect = MARKS
    idle = not_here("service_tier", unless=("auto", "standard_only"))
    unsupported = _UNSUPPORTED

    @model_validator(mode="after")
    def _one_format(self) -> CountTokensRequest:
        if self.output_format is not None and self.output_config.format is not None:
            message = "output_format and output_config.format: only one of them can say what the answer must be."
            raise InvalidRequest(message, param="output_format")
        return self


class MessagesRequest(CountTokensRequest, AnthropicSampling):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] = []
    stream: bool = False
    metadata: Metadata = Metadata()
    without_effect = MARKS | {"metadata"}

    @model_validator(mode="after")
    def _thoughts_are_part_of_the_answer(self) -> MessagesRequest:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            message = f"thinking.budget_tokens: must be less than max_tokens ({self.max_tokens}), got {budget}."
            raise InvalidRequest(message, param="thinking")
        return self
