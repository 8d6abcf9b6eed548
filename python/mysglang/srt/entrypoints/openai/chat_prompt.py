"""Makes a prompt of a conversation: messages in the form of the chat template, rendered off the event loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mysglang.srt.entrypoints.body import BODY_BYTES
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.protocol import THINKING_SWITCHES, ChatCompletionRequest, ChatMessage
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.text_pool import LONG_TEXT, QUICK_TEXT, checkpoint
from mysglang.srt.parser.template_guard import NotQuick
from mysglang.srt.parser.template_manager import TOOL_SIZE, TemplateManager

MANY = 256
PER_MESSAGE = 64
"""A message, or a tool, takes about as long to render as so many characters of text."""


@dataclass(frozen=True, slots=True)
class ThinkingWords:
    """How a model's template is asked to think, for dialects that have their own fields for that."""

    switches: tuple[str, ...]
    """Variables of the chat template that are true or false."""
    effort: str | None
    """The variable that says how hard."""
    separates_thoughts: bool
    """True if the server knows how the model writes thoughts."""

    def switched(self, on: bool) -> dict[str, object]:
        """Returns the variables for `chat_template_kwargs` that switch thinking; empty for a template without a
        switch.
        """
        return dict.fromkeys(self.switches, on)

    def require(self, field: str) -> None:
        """Raises InvalidRequest for a client that wants to see thoughts, if they cannot be separated from the
        answer.
        """
        if not self.separates_thoughts:
            message = f"{field}: this server does not tell thoughts apart; it must be started with --reasoning-parser."
            raise InvalidRequest(message, param=field)


async def render_chat(
    front: Front,
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_kwargs: Mapping[str, Any],
) -> str:
    """Returns the prompt, its BOS included. Raises InvalidRequest, also for a model or a server that cannot chat."""
    templates = _templates(front)
    if tools and "tools" not in templates.variables(with_tools=True):
        raise InvalidRequest("tools: the model's chat template has no place for them.", param="tools")

    def render(*, quick: bool = False, cancelled: threading.Event | None = None) -> str:
        return templates.render(
            [_as_dict(message) for message in messages],
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
            cancelled=cancelled,
            quick=quick,
        )

    size = _size(messages, tools)
    if size < QUICK_TEXT:
        try:
            return render(quick=True)
        except NotQuick:
            size = LONG_TEXT  # a template that works so much for a short text must not delay other short texts
    cancelled = threading.Event()
    try:
        return await front.text_pool.run(max(size, QUICK_TEXT), lambda: render(cancelled=cancelled))
    finally:
        cancelled.set()  # of no use to a client that has left


def thinking_kwargs(front: Front, body: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Returns the template variables for `reasoning_effort`. Raises InvalidRequest if the model's template has none."""
    effort, thinks = body.effort, body.thinks
    if effort is None and thinks is None:
        return {}
    known = _templates(front).variables(with_tools=bool(tools))
    switched = {} if thinks is None else {name: thinks for name in THINKING_SWITCHES if name in known}
    if effort is None:
        return {**switched}
    kwargs: dict[str, object] = {name: effort != "none" for name in THINKING_SWITCHES if name in known}
    if "reasoning_effort" in known and effort != "none":
        kwargs["reasoning_effort"] = effort
    if not kwargs:
        field = "reasoning_effort" if body.reasoning is None else "reasoning"
        message = f"{field}: the model's chat template has no way to ask for {effort!r}."
        raise InvalidRequest(message, param=field)
    return {**kwargs, **switched}


def thinking_words(front: Front, *, with_tools: bool, separates_thoughts: bool) -> ThinkingWords:
    """Returns how the model's template is asked to think. Raises InvalidRequest for a model or a server that cannot
    chat.
    """
    known = _templates(front).variables(with_tools=with_tools)
    effort = "reasoning_effort" if "reasoning_effort" in known else None
    return ThinkingWords(tuple(name for name in THINKING_SWITCHES if name in known), effort, separates_thoughts)


def _templates(front: Front) -> TemplateManager:
    if front.template_manager is None:
        message = "messages need a tokenizer, and this server runs without one (--skip-tokenizer-init)."
        raise InvalidRequest(message, param="messages")
    return front.template_manager


def _size(messages: Sequence[ChatMessage], tools: Sequence[object]) -> int:
    """Estimates the rendering time, as the number of characters of text that take as long."""
    if len(messages) + len(tools) > MANY or BODY_BYTES.get() >= LONG_TEXT:
        return LONG_TEXT
    return sum(_content_size(message.content) for message in messages) + TOOL_SIZE * len(tools)


def _content_size(content: str | list[dict[str, str]] | None) -> int:
    return len(content) if isinstance(content, str) else PER_MESSAGE * len(content or ())


def _as_dict(message: ChatMessage) -> dict[str, object]:
    """Returns the fields that the client sent, without defaults. A function becomes a tool, which is its newer name."""
    checkpoint()
    fields: dict[str, object] = message.model_dump(exclude_unset=True)
    if fields["role"] == "function":
        fields["role"] = "tool"
    return fields
