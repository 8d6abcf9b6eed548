"""Hermes and Qwen 2.5/3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, one for each call."""

from __future__ import annotations

from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser.text_reader import Steps

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesDetector(JsonObjectDetector):
    """One answer in this format."""

    markers = (BEGIN, END)

    @classmethod
    def structure(cls, name: str) -> CallStructure:
        return CallStructure(BEGIN, f'{BEGIN}\n{{"name": {json_text(name)}, "arguments": ', f"}}\n{END}")

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), END)
