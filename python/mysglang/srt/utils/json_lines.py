"""JSON within lines: written so that all readers of lines agree where a line ends.

JSON may contain U+0085, U+2028 and U+2029 as they are. Readers that divide a text as Unicode says end a line there, and
find half a value: Python's `str.splitlines`, httpx's `iter_lines`, and so the client that Ollama publishes.
"""

from __future__ import annotations

import re

_LINE_ENDS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_ESCAPES = {mark.encode(): b"\\u%04x" % ord(mark) for mark in "\x85\u2028\u2029"}


def unbroken(json: bytes) -> bytes:
    """Returns the same JSON, or lines of JSON, with escapes for all line ends within its strings."""
    if json.isascii() or (b"\xe2\x80" not in json and b"\xc2\x85" not in json):
        return json
    return _LINE_ENDS.sub(lambda found: _ESCAPES[found[0]], json)
