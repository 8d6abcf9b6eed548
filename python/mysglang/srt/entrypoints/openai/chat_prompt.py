"""From a conversation to a prompt: messages as the chat template wants them, rendered off the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ChatMessage
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.template_manager import TemplateManager, text_size

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen's and GLM's, DeepSeek's."""


@dataclass(frozen=True, slots=True)
class ThinkingWords:
    """How a model can be asked to think, for dialects that have words of their own for that."""

    switches: tuple[str, ...]
    """Variables of the chat template that are true or false."""
    effort: str | None
    """The variable that says how hard."""
    told_apart: bool
    """Whether the server knows how the model writes thoughts."""

    def switched(self, on: bool) -> dict[str, object]:
        """For `chat_template_kwargs`; nothing for a template that leaves no choice."""
        return dict.fromkeys(self.switches, on)

    def require(self, field: str) -> None:
        """Raises InvalidRequest, for a client that wants to see thoughts, where they cannot be shown as such."""
        if not self.told_apart:
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
    """The prompt, its BOS included. Raises InvalidRequest, also for a model or a server that cannot chat."""
    templates = _templates(front)
    if tools and "tools" not in templates.variables(with_tools=True):
        raise InvalidRequest("tools: the model's chat template has no place for them.", param="tools")
    conversation = [_as_dict(message) for message in messages]
    return await front.text_pool.run(
        text_size(conversation),
        lambda: templates.render(
            conversation,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        ),
    )


def thinking_kwargs(front: Front, body: ChatCompletionRequest, tools: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """What `reasoning_effort` is to the model's template. Raises InvalidRequest where it is nothing."""
    effort = body.effort
    if effort is None:
        return {}
    known = _templates(front).variables(with_tools=bool(tools))
    kwargs: dict[str, object] = {name: effort != "none" for name in THINKING_SWITCHES if name in known}
    if "reasoning_effort" in known and effort != "none":
        kwargs["reasoning_effort"] = effort
    if not kwargs:
        field = "reasoning_effort" if body.reasoning is None else "reasoning"
        message = f"{field}: the model's chat template has no way to ask for {effort!r}."
        raise InvalidRequest(message, param=field)
    return kwargs


def thinking_words(front: Front, *, with_tools: bool, told_apart: bool) -> ThinkingWords:
    """Raises InvalidRequest for a model or a server that cannot chat."""
    known = _templates(front).variables(with_tools=with_tools)
    effort = "reasoning_effort" if "reasoning_effort" in known else None
    return ThinkingWords(tuple(name for name in THINKING_SWITCHES if name in known), effort, told_apart)


def _templates(front: Front) -> TemplateManager:
    if front.template_manager is None:
        message = "messages need a tokenizer, and this server runs without one (--skip-tokenizer-init)."
        raise InvalidRequest(message, param="messages")
    return front.template_manager


def _as_dict(message: ChatMessage) -> dict[str, object]:
    """What the client sent, and nothing that it left out. A function is a tool by its older name."""
    fields: dict[str, object] = message.model_dump(exclude_unset=True)
    if fields["role"] == "function":
        fields["role"] = "tool"
    return fields
