"""DeepSeek V3.1: `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`."""

from __future__ import annotations

from mysglang.srt.function_call.base_detector import MAX_NAME
from mysglang.srt.function_call.deepseekv3_detector import SEPARATOR, DeepSeekV3Detector
from mysglang.srt.function_call.json_object_detector import Outcome
from mysglang.srt.parser.text_reader import Steps


class DeepSeekV31Detector(DeepSeekV3Detector):
    """One answer in this format: the markers of V3, and nothing else between them."""

    def _named_call(self) -> Steps[Outcome]:
        head = yield from self._reader.before((SEPARATOR,), MAX_NAME)
        if head is None:
            return Outcome.NO_CALL
        return (yield from self._json_arguments_of(head[0].strip()))
