"""Qwen3-Coder, MiMo, Step 3.5: `<function=f>`, `<parameter=a>`, the value, `</parameter>`, `</function>`, all of it
usually within `<tool_call>`.
"""

from __future__ import annotations

from mysglang.srt.function_call.tagged_detector import TaggedDetector
from mysglang.srt.parser.text_reader import Steps


class Qwen3CoderDetector(TaggedDetector):
    """One answer in this format."""

    frames = ("<tool_call>", "</tool_call>")
    call_begin, call_end = "<function=", "</function>"
    parameter_begin, parameter_end = "<parameter=", "</parameter>"
    markers = frames
    value_on_lines = True

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head(">"))

    def _parameter_name(self) -> Steps[str | None]:
        return (yield from self._head(">"))
