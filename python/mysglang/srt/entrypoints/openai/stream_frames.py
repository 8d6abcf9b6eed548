"""Renders the frames of OpenAI's streams. The parts that are the same in all frames of one stream are rendered once.

This module renders the JSON around the choices; the callers render the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

_MARK = "\0text\0"
"""Placeholder of a text. It cannot occur elsewhere in a frame, because names and ids are printable."""
_MARK_AS_JSON = orjson.dumps(_MARK)


class StreamFrames:
    """Renders the frames of one chat or completions stream. The parts that all frames share are rendered once."""

    def __init__(self, head: Mapping[str, object], *, usage_key: bool) -> None:
        """`head`: the fields id, object, created and model. `usage_key`: True if the client asked for usage, so that
        every frame has this key, null in most.
        """
        self._head = b"data: " + orjson.dumps(dict(head))[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if usage_key else b"]}\n\n"

    def choice(self, choice: Mapping[str, object], usage: Mapping[str, object] | None = None) -> bytes:
        """Returns the frame of one choice."""
        return self._head + orjson.dumps(choice) + (self._tail if usage is None else _usage_tail(usage))

    def usage(self, usage: Mapping[str, object]) -> bytes:
        """Returns the frame behind all choices, with what they used together."""
        return self._head + _usage_tail(usage)


class TextFrame:
    """A frame that differs from the others of its choice only by a text. All around the text is rendered once."""

    def __init__(self, frame_with: Callable[[str], bytes]) -> None:
        self._before, self._behind = frame_with(_MARK).split(_MARK_AS_JSON)

    def of_chunk(self, text: str, _token_bytes: bytes) -> bytes:
        """Returns the frame for what a chunk brings; empty if that is no text."""
        return self._before + orjson.dumps(text) + self._behind if text else b""

    def with_text(self, text: str) -> bytes:
        """Returns the bytes of `frame_with` for this text."""
        return self._before + orjson.dumps(text) + self._behind


def _usage_tail(usage: Mapping[str, object]) -> bytes:
    return b'],"usage":' + orjson.dumps(usage) + b"}\n\n"
