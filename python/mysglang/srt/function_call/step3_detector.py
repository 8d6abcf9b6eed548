"""Step 3: `<｜tool_call_begin｜>function<｜tool_sep｜>`, then `<steptml:invoke name="f">` with
`<steptml:parameter name="a">`, the value, `</steptml:parameter>`, within `<｜tool_calls_begin｜>`.
"""

from __future__ import annotations

from mysglang.srt.function_call.minimax_m2_detector import MinimaxM2Detector


class Step3Detector(MinimaxM2Detector):
    """One answer in this format: other words for the same."""

    frames = (
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    )
    call_begin, call_end = '<steptml:invoke name="', "</steptml:invoke>"
    parameter_begin, parameter_end = '<steptml:parameter name="', "</steptml:parameter>"
    markers = (
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    )
