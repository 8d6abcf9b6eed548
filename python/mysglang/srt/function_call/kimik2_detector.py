"""Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

What stands before the arguments is the call's id as well: the model wants to read it again with the answer.
"""

from __future__ import annotations

import re

from mysglang.srt.function_call.base_detector import MAX_NAME
from mysglang.srt.function_call.json_object_detector import Outcome
from mysglang.srt.function_call.named_json_detector import NamedJsonDetector
from mysglang.srt.parser.text_reader import Steps

SEPARATOR = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


class KimiK2Detector(NamedJsonDetector):
    """One answer in this format."""

    section_begin, section_end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call_begin, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    markers = (section_begin, section_end, call_begin, call_end, SEPARATOR)

    def _named_call(self) -> Steps[Outcome]:
        head = yield from self._reader.before((SEPARATOR,), MAX_NAME)
        call_id = head[0].strip() if head else ""
        found = _ID.fullmatch(call_id)
        if found is None:
            return Outcome.NO_CALL
        return (yield from self._json_arguments_of(found["name"], call_id))
