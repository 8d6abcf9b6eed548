"""Hunyuan: GLM's tags, with `<tool_sep>` behind the function's name, and all calls within `<tool_calls>`."""

from __future__ import annotations

from mysglang.srt.function_call.glm4_moe_detector import Glm4MoeDetector
from mysglang.srt.parser.text_reader import Steps

SEPARATOR = "<tool_sep>"


class HunyuanDetector(Glm4MoeDetector):
    """One answer in this format."""

    frames = ("<tool_calls>", "</tool_calls>")
    markers = (*Glm4MoeDetector.markers, *frames, SEPARATOR)

    def _call_name(self) -> Steps[str | None]:
        return (yield from self._head(SEPARATOR))
