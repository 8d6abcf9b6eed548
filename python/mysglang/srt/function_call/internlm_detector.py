"""InternLM and Intern-S1: `<|action_start|> <|plugin|>{"name": "f", "parameters": {...}}<|action_end|>`."""

from __future__ import annotations

from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser.text_reader import Steps

BEGIN, PLUGIN, END = "<|action_start|>", "<|plugin|>", "<|action_end|>"


class InternlmDetector(JsonObjectDetector):
    """One answer in this format."""

    markers = (BEGIN, PLUGIN, END)

    @classmethod
    def structure(cls, name: str) -> CallStructure:
        return CallStructure(BEGIN, f'{BEGIN} {PLUGIN}\n{{"name": {json_text(name)}, "parameters": ', f"}}{END}")

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            if not (yield from self._reader.accept(PLUGIN)):
                self._no_call()
                continue
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), END)
