"""DeepSeek V3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, a new line, the arguments as JSON in a Markdown
fence, and `<｜tool▁call▁end｜>`.
"""

from __future__ import annotations

from mysglang.srt.function_call.base_detector import MAX_NAME
from mysglang.srt.function_call.json_object_detector import TOO_MANY, Outcome
from mysglang.srt.function_call.named_json_detector import NamedJsonDetector
from mysglang.srt.parser.text_reader import Steps

SEPARATOR, FENCE = "<｜tool▁sep｜>", "```"


class DeepSeekV3Detector(NamedJsonDetector):
    """One answer in this format."""

    section_begin, section_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call_begin, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    markers = (section_begin, section_end, call_begin, call_end, SEPARATOR)

    def _named_call(self) -> Steps[Outcome]:
        reader = self._reader
        kind = yield from reader.before((SEPARATOR,), MAX_NAME)
        head = kind and (yield from reader.before(("\n",), MAX_NAME))
        if head is None:
            return Outcome.NO_CALL
        yield from reader.skip()
        yield from reader.accept(f"{FENCE}json", FENCE)
        outcome = yield from self._json_arguments_of(head[0].strip())
        if outcome is Outcome.CALL:
            yield from reader.skip(TOO_MANY)
            yield from reader.accept(FENCE)
        return outcome
