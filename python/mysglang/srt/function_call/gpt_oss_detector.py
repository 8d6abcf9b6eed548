"""gpt-oss: a message to `functions.f` is a call, and its text is the arguments. Other messages are kept as text. The
reasoning parser separates thoughts from the answer, and leaves only these messages.
"""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser import harmony
from mysglang.srt.parser.text_reader import Steps

PREFIX = "functions."


class GptOssDetector(JsonObjectDetector):
    """One answer in this format."""

    markers = harmony.MARKERS

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(*harmony.HEADS)
            head = yield from harmony.read_head(self._reader, marker)
            if head is None or not head.recipient.startswith(PREFIX):
                self._no_call()
                continue
            outcome = yield from self._json_arguments_of(head.recipient.removeprefix(PREFIX))
            yield from self._close(outcome, *harmony.ENDS)
