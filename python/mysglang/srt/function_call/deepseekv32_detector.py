"""DeepSeek V3.2: `<｜DSML｜invoke name="f">`, `<｜DSML｜parameter name="a" string="true">`, the value,
`</｜DSML｜parameter>`, within `<｜DSML｜function_calls>`. The model says itself which values are strings.
All parameters may stand there as one JSON object instead.
"""

from __future__ import annotations

from typing import ClassVar

from mysglang.srt.function_call.minimax_m2_detector import MinimaxM2Detector
from mysglang.srt.parser.json_reader import json_value
from mysglang.srt.parser.text_reader import Steps


class DeepSeekV32Detector(MinimaxM2Detector):
    """One answer in this format."""

    frames: ClassVar[tuple[str, ...]] = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    call_begin, call_end = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
    parameter_begin, parameter_end = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"
    markers = ("｜DSML｜",)
    _says_string = False

    def _parameter_name(self) -> Steps[str | None]:
        head = yield from self._head(">")
        if head is None:
            return None
        name, _, rest = head.partition('"')
        self._says_string = 'string="true"' in rest
        return name

    def _parameters(self, name: str) -> Steps[None]:
        reader = self._reader
        yield from reader.skip()
        if (yield from reader.peek()) != "{":
            yield from super()._parameters(name)
            return
        if (yield from json_value(reader, self._arguments)):
            yield from reader.until((self.call_end,), self._normal)
            self._end()
        else:
            # The client sees what the model wrote, and can tell it that this is no JSON.
            yield from reader.until((self.call_end,), self._arguments)

    def _types_of(self, name: str, parameter: str) -> frozenset[str]:
        return frozenset({"string"}) if self._says_string else super()._types_of(name, parameter)
