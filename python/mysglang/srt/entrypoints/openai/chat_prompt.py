"""From a conversation to a prompt: messages as the chat template wants them, rendered off the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ChatMessage
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.template_manager import TemplateManager, text_size

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen's and GLM's, DeepSeek's."""


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
    effort = body.reasoning_effort
    if effort is None:
        return {}
    known = _templates(front).variables(with_tools=bool(tools))
    kwargs: dict[str, object] = {name: effort != "none" for name in THINKING_SWITCHES if name in known}
    if "reasoning_effort" in known and effort != "none":
        kwargs["reasoning_effort"] = effort
    if not kwargs:
        message = f"reasoning_effort: the model's chat template has no way to ask for {effort!r}."
        raise InvalidRequest(message, param="reasoning_effort")
    return kwargs


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
