"""Phi-4-mini: `<|tool_call|>[{"name": "f", "arguments": {...}}]<|/tool_call|>`, or `functools[...]` without an end."""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser.text_reader import Steps

BEGIN, END, BARE = "<|tool_call|>", "<|/tool_call|>", "functools"


class Phi4MiniDetector(JsonObjectDetector):
    """One answer in this format."""

    markers = (BEGIN, END)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN, BARE)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), END)
