"""MiniMax M2: `<invoke name="f">`, `<parameter name="a">`, the value, `</parameter>`, `</invoke>`, within
`<minimax:tool_call>`.
"""

from __future__ import annotations

from typing import ClassVar

from mysglang.srt.function_call.tagged_detector import TaggedDetector
from mysglang.srt.parser.text_reader import Steps


class MinimaxM2Detector(TaggedDetector):
    """One answer in this format."""

    frames: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    call_begin, call_end = '<invoke name="', "</invoke>"
    parameter_begin, parameter_end = '<parameter name="', "</parameter>"
    markers: ClassVar[tuple[str, ...]] = frames

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head('">'))

    def _parameter_name(self) -> Steps[str | None]:
        return (yield from self._head('">'))
