"""An answer that is a list of calls and nothing else: what a model is held to that must call a function."""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.parser.text_reader import Steps


class JsonArrayDetector(JsonObjectDetector):
    """Reads `[{"name": "f", "parameters": {...}}, ...]`, independent of the model's own format."""

    markers = ()

    def _calls(self) -> Steps[None]:
        self._reader.hold()
        yield from self._reader.skip()
        outcome = yield from self._json_calls()
        if outcome is Outcome.NO_CALL:
            self._no_call()

    def _normal(self, text: str) -> None:
        # Behind a call there is no text, but perhaps half of another that was cut off.
        if not self.has_calls:
            super()._normal(text)
