"""Llama 3: an answer that is `{"name": "f", "parameters": {...}}`, or one behind `<|python_tag|>` anywhere; several
calls stand behind each other with a semicolon between them.
"""

from __future__ import annotations

from mysglang.srt.function_call.arguments_writer import json_text
from mysglang.srt.function_call.core_types import CallStructure
from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.parser.text_reader import Steps

TAG = "<|python_tag|>"


class Llama32Detector(JsonObjectDetector):
    """One answer in this format."""

    markers = (TAG,)

    @classmethod
    def structure(cls, name: str) -> CallStructure:
        return CallStructure(TAG, f'{TAG}{{"name": {json_text(name)}, "parameters": ', "}")

    def _calls(self) -> Steps[None]:
        self._reader.hold()  # a call may stand here without its tag
        while True:
            yield from self._reader.skip()
            if (yield from self._several()) is Outcome.NO_CALL:
                self._no_call()
            yield from self._text_before(TAG)

    def _several(self) -> Steps[Outcome]:
        outcome = yield from self._json_call()
        while outcome is Outcome.CALL:
            self._reader.hold()
            yield from self._reader.skip()
            yield from self._reader.accept(";", ",")
            yield from self._reader.skip()
            yield from self._reader.accept(TAG)
            yield from self._reader.skip()
            outcome = yield from self._json_call()
        return outcome
