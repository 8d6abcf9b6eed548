"""GigaChat 3: `<|message_sep|>function call<|role_sep|>`, a line break, and `{"name": "f", "arguments": {...}}`; or the
object behind `<|function_call|>`.
"""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser.text_reader import Steps

SEPARATOR, ROLE, INLINE, END = "<|message_sep|>", "function call<|role_sep|>", "<|function_call|>", "</s>"


class GigaChat3Detector(JsonObjectDetector):
    """One answer in this format."""

    markers = (SEPARATOR, "<|role_sep|>", INLINE)

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(SEPARATOR, ROLE, INLINE)
            if marker == SEPARATOR:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(ROLE, INLINE)
            if not marker:
                self._no_call()
                continue
            yield from self._reader.skip()
            yield from self._close((yield from self._json_call()), END, SEPARATOR)
