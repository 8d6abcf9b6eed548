"""Command A and its successors: a list between `<|START_ACTION|>` and `<|END_ACTION|>`, each call of which is
`{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}`.
"""

from __future__ import annotations

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector
from mysglang.srt.parser.text_reader import Steps

BEGIN, END = "<|START_ACTION|>", "<|END_ACTION|>"


class CohereCommand4Detector(JsonObjectDetector):
    """One answer in this format. The model's own call numbers are not reported, because they start again with each
    answer.
    """

    markers = (BEGIN, END)
    name_keys = ("tool_name", "name")
    keys_beside = ("tool_call_id", "type", "id")

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            yield from self._close((yield from self._json_calls()), END)
