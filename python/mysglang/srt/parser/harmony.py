"""The heads of messages in OpenAI's harmony format, in which gpt-oss answers:
`<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`.

An answer's first head lacks its beginning, which is the end of the prompt. What is left of it may begin with the
recipient: ` to=functions.f<|channel|>commentary json<|message|>{...}<|call|>`.
Source: OpenAI's description of the format.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mysglang.srt.parser.text_reader import Steps, TextReader

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
HEADS = (START, CHANNEL)
"""Markers that begin a head."""
ENDS = (END, CALL, RETURN)
MARKERS = (*HEADS, MESSAGE, *ENDS, CONSTRAIN)

PROMPTED = f"{START}assistant "
"""The beginning of the first head, which is in the prompt."""
TO = "to="
NOBODY = "assistant"
"""A recipient that is no tool: the model speaks to itself."""

MAX_HEAD = 512
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(rf"\b{TO}(?!{NOBODY}\b)([^\s<]+)")


class Head(NamedTuple):
    """Fields of a head; absent ones are empty."""

    channel: str
    recipient: str


def read_head(reader: TextReader, begun_by: str) -> Steps[Head | None]:
    """Returns the rest of a head whose first marker was just read, up to and including `<|message|>`. None if it is not
    a head.
    """
    found = yield from reader.before((MESSAGE,), MAX_HEAD)
    if found is None:
        return None
    text = begun_by + found[0]
    channels, recipient = _CHANNEL.findall(text), _RECIPIENT.search(text)
    return Head(channels[-1] if channels else "", recipient[1] if recipient else "")


def read_first(reader: TextReader) -> Steps[bool]:
    """Reads the recipient that the text may begin with, as the rest of the first head. True if there is one. The text
    is held.
    """
    reader.hold()
    yield from reader.skip()
    return bool((yield from reader.accept(TO)))
