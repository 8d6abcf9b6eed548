"""DeepSeek V4: the calls of V3.2 within `<｜DSML｜tool_calls>`."""

from __future__ import annotations

from mysglang.srt.function_call.deepseekv32_detector import DeepSeekV32Detector


class DeepSeekV4Detector(DeepSeekV32Detector):
    """One answer in this format."""

    frames = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
