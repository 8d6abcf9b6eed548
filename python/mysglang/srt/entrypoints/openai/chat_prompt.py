"""From a conversation to a prompt: messages as the chat template wants them, rendered off the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.protocol import ChatMessage
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.template_manager import text_size


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
    templates = front.template_manager
    if templates is None:
        message = "messages need a tokenizer, and this server runs without one (--skip-tokenizer-init)."
        raise InvalidRequest(message, param="messages")
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


def _as_dict(message: ChatMessage) -> dict[str, object]:
    """What the client sent, and nothing that it left out. A function is a tool by its older name."""
    fields: dict[str, object] = message.model_dump(exclude_unset=True)
    if fields["role"] == "function":
        fields["role"] = "tool"
    return fields
