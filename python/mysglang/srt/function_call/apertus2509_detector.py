"""Apertus: `<|tools_prefix|>[{"f": {...}}, {"g": {...}}]<|tools_suffix|>`, the arguments under the function's name."""

from __future__ import annotations

from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.parser.json_reader import json_string
from mysglang.srt.parser.text_reader import Steps

BEGIN, END = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus2509Detector(JsonObjectDetector):
    """One answer in this format."""

    markers = (BEGIN, END)

    @classmethod
    def structure(cls, name: str) -> CallStructure:
        return CallStructure(BEGIN, f"{BEGIN}[{{{json_text(name)}: ", f"}}]{END}")

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), END)

    def _json_item(self) -> Steps[Outcome]:
        reader = self._reader
        if not (yield from reader.accept("{")):
            return Outcome.NO_CALL
        yield from reader.skip()
        name = yield from json_string(reader)
        yield from reader.skip()
        if name is None or not (yield from reader.accept(":")):
            return Outcome.NO_CALL
        outcome = yield from self._json_arguments_of(name)
        if outcome is Outcome.CALL:
            yield from reader.skip()
            yield from reader.accept("}")
        return outcome
