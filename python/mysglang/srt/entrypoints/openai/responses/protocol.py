"""POST /v1/responses, as clients may send it.

Metadata and the client's own bookkeeping are taken and change nothing. There is no summary of reasoning, so "auto"
means none; an answer's thoughts are told in full.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from mysglang.srt.entrypoints.openai.protocol import Metadata, ReasoningEffort
from mysglang.srt.entrypoints.openai.response_format import JsonObjectFormat, TextFormat
from mysglang.srt.entrypoints.openai.tool_protocol import Name, ObjectSchema
from mysglang.srt.entrypoints.sampling_body import ResponsesSampling
from mysglang.srt.entrypoints.strict_model import OFF, StrictModel, not_here
from mysglang.srt.errors import InvalidRequest

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class InputText(StrictModel):
    """Text for the model."""

    type: Literal["input_text"]
    text: str


class OutputText(StrictModel):
    """Text of an earlier answer; its further fields have no effect."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


TextPart: TypeAlias = Annotated[InputText | OutputText, Field(discriminator="type")]


def _as_parts(content: object) -> object:
    """Returns the content as parts: a string becomes one part."""
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Parts = Annotated[list[TextPart], BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart])]


class InputMessage(StrictModel):
    """A message of the user, the system or the model."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: str | None = None
    status: Status | None = None
    unsupported = not_here("phase", unless=("final_answer", "commentary"))


class FunctionCall(StrictModel):
    """A tool call in an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    unsupported = {
        **not_here("caller", unless=({"type": "direct"},)),
        **not_here("namespace"),
        **not_here("async", unless=OFF),
    }


class FunctionCallOutput(StrictModel):
    """Result of a tool call that an earlier answer made."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: str | None = None
    status: Status | None = None
    unsupported = {**not_here("caller", unless=({"type": "direct"},)), **not_here("namespace", "name")}


class ReasoningText(StrictModel):
    """A piece of a thought."""

    type: Literal["reasoning_text"]
    text: str


class Reasoning(StrictModel):
    """A thought of an earlier answer: its text, or what this server returned as its encrypted content."""

    type: Literal["reasoning"]
    id: str | None = None
    content: list[ReasoningText] = []
    encrypted_content: str | None = None
    status: Status | None = None
    unsupported = not_here("summary", unless=([],))


def _kind(item: object) -> object:
    """Returns the type of an item, which messages may leave out."""
    if isinstance(item, dict):
        return item.get("type") or "message"
    return getattr(item, "type", None)


Item: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")],
    Discriminator(_kind),
]


def _as_items(value: object) -> object:
    """Returns the input as items: a string becomes a message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Items = Annotated[list[Item], BeforeValidator(_as_items, json_schema_input_type=str | list[Item])]


class ResponsesTool(StrictModel):
    """A function that the model may call. Unlike in OpenAI's API, it is not strict unless it says so."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: ObjectSchema = {}
    strict: bool = False
    unsupported = {
        **not_here("defer_loading", unless=OFF),
        **not_here("allowed_callers", unless=(["direct"],)),
        **not_here("output_schema"),
    }


class ChosenFunction(StrictModel):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class SchemaFormat(StrictModel):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(StrictModel):
    """The format that the answer must have."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] = TextFormat(
        type="text"
    )
    idle = not_here("verbosity", unless=("medium",))


class ReasoningConfig(StrictModel):
    """How much effort the model spends on thinking."""

    effort: ReasoningEffort | None = None
    unsupported = {
        **not_here("summary", "generate_summary", "context", unless=("auto",)),
        **not_here("mode", unless=("standard",)),
    }


class ResponsesStreamOptions(StrictModel):
    """Options of a stream."""

    unsupported = not_here("include_obfuscation", unless=OFF)


class PromptOfResponse(StrictModel):
    """The parts from which the prompt of a response is made."""

    input: Items
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ResponsesTool] = []
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction = "auto"
    parallel_tool_calls: bool = True
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    chat_template_kwargs: dict[str, Any] = {}
    idle = not_here("truncation", unless=("disabled",))
    """"auto" would drop the oldest items of a conversation that is too long, which is refused here."""
    unsupported = not_here("conversation", "personality")


class CountResponseTokensRequest(PromptOfResponse):
    """Body of POST /v1/responses/input_tokens."""


class ResponsesRequest(PromptOfResponse, ResponsesSampling):
    """Body of POST /v1/responses."""

    store: bool = True
    background: bool = False
    stream: bool = False
    stream_options: ResponsesStreamOptions = ResponsesStreamOptions()
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] = []
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None

    # Beyond OpenAI's: as in /v1/chat/completions.
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    # Bookkeeping of the client's: taken, and without effect here.
    metadata: Metadata = {}
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    unsupported = {
        **PromptOfResponse.unsupported,
        **not_here("prompt", "moderation", "image", "context_management", "access_programs", "session_id"),
    }
    idle = {
        **PromptOfResponse.idle,
        **not_here("service_tier", unless=("auto", "default")),
        # A bound on calls of built-in tools, of which there are none here.
        **not_here("max_tool_calls", "prompt_cache_retention", "prompt_cache_options", "request_id"),
    }

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponsesRequest:
        if self.background and not self.store:
            raise InvalidRequest(
                "background: only with store=true, otherwise its result could not be fetched.", param="background"
            )
        if self.top_logprobs and LOGPROBS not in self.include:
            raise InvalidRequest(f"top_logprobs: only with include {LOGPROBS!r}.", param="top_logprobs")
        return self
