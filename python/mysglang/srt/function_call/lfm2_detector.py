"""LFM2: `<|tool_call_start|>[f(a=1, b="x")]<|tool_call_end|>`, or a list of JSON calls between these markers."""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import Outcome
from mysglang.srt.function_call.pythonic_detector import PythonicDetector
from mysglang.srt.parser.text_reader import Steps

END = "<|tool_call_end|>"


class Lfm2Detector(PythonicDetector):
    """One answer in this format. A JSON list without a marker before it is text."""

    def _list(self, *, announced: bool) -> Steps[bool]:
        yield from self._reader.skip()
        if not announced or (yield from self._reader.peek()) != "{":
            return (yield from super()._list(announced=announced))
        outcome = yield from self._json_items()
        if outcome is not Outcome.NO_CALL:
            yield from self._close(outcome, END)
        return outcome is not Outcome.NO_CALL
