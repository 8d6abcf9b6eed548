"""Mistral: `[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]`, and since its tokenizer of version 11
`[TOOL_CALLS]f[ARGS]{...}` for each call, some with `[CALL_ID]id` before the arguments.
"""

from __future__ import annotations

import re

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.parser.text_reader import Steps

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_WORD = re.compile(r"[^\[{]*")


class MistralDetector(JsonObjectDetector):
    """One answer in either format."""

    markers = (BEGIN, CALL_ID, ARGS)

    def _calls(self) -> Steps[None]:
        while True:
            yield from self._text_before(BEGIN)
            yield from self._reader.skip()
            bracket = (yield from self._reader.peek()) == "["
            outcome = yield from self._json_calls() if bracket else self._named_call()
            if outcome is Outcome.NO_CALL:
                self._no_call()

    def _named_call(self) -> Steps[Outcome]:
        name, call_id = (yield from self._word()), None
        if (yield from self._reader.accept(CALL_ID, ARGS)) == CALL_ID:
            call_id = yield from self._word()
            yield from self._reader.accept(ARGS)
        return (yield from self._json_arguments_of(name, call_id))

    def _word(self) -> Steps[str]:
        parts: list[str] = []
        yield from self._reader.run(_WORD, parts.append)
        return "".join(parts).strip()
