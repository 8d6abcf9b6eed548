"""The heads of messages in OpenAI's harmony format, in which gpt-oss answers:
`<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`.

An answer's first head lacks its beginning, which is the end of the prompt. Source: OpenAI's description of the format.
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

MAX_HEAD = 512
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


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
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    return Head(channel[1] if channel else "", recipient[1] if recipient else "")
