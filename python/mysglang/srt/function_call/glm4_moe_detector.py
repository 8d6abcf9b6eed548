"""GLM 4.5 and later: `<tool_call>f`, then `<arg_key>a</arg_key>` and `<arg_value>`, the value, `</arg_value>` for each
parameter, `</tool_call>`; with line breaks between them (4.5) or without (4.7).
"""

from __future__ import annotations

import re
from typing import ClassVar

from mysglang.srt.function_call.tagged_detector import TaggedDetector
from mysglang.srt.parser.text_reader import Steps

KEY_END, VALUE_BEGIN = "</arg_key>", "<arg_value>"
_WORD = re.compile(r"[^\s<]*")


class Glm4MoeDetector(TaggedDetector):
    """One answer in this format."""

    call_begin, call_end = "<tool_call>", "</tool_call>"
    parameter_begin, parameter_end = "<arg_key>", "</arg_value>"
    markers: ClassVar[tuple[str, ...]] = (call_begin, call_end, parameter_begin, KEY_END, VALUE_BEGIN, parameter_end)

    def _call_name(self) -> Steps[str | None]:
        """The first word, up to white space or the next tag."""
        parts: list[str] = []
        yield from self._reader.skip()
        yield from self._reader.run(_WORD, parts.append)
        return "".join(parts)

    def _parameter_name(self) -> Steps[str | None]:
        key = yield from self._head(KEY_END)
        if key is None:
            return None
        yield from self._reader.skip()
        yield from self._reader.accept(VALUE_BEGIN)
        return key
