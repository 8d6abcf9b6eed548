"""Prompt: all that comes before the next generated token, as text and as a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.lang.chat_format import Message
from mysglang.lang.expressions import Media


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one generation. `text` is for backends that complete text, the rest for backends that know only
    conversations.
    """

    text: str
    messages: tuple[Message, ...] = ()
    """The messages that are complete."""
    role: str | None = None
    """Role of the message that is being written; None between messages, and for programs without roles."""
    partial: str = ""
    """Text of that message so far."""
    media: tuple[Media, ...] = ()
    """Images and videos of the whole text, in order."""

    def conversation(self) -> list[Message]:
        """Returns the messages to send to a backend that answers conversations. Raises ValueError where the next token
        would not begin an answer.
        """
        if self.role is None and not self.messages:
            return [{"role": "user", "content": self.text}]
        if self.role == "assistant" and not self.partial:
            return [dict(message) for message in self.messages]
        raise ValueError(
            "this backend answers whole conversations, so gen() must come first in an assistant's message: "
            "s += assistant(gen(...)). With @function(num_api_spec_tokens=128), text may stand before and between."
        )
