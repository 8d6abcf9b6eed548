"""Calls whose name stands before their arguments, between markers of their own, with all calls in one section. The
common part of the formats of DeepSeek and Kimi.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from mysglang.srt.function_call.json_object_detector import JsonObjectDetector, Outcome
from mysglang.srt.parser.text_reader import Steps


class NamedJsonDetector(JsonObjectDetector):
    """Base of these formats. Models forget the section's markers, so that they are not needed."""

    section_begin: ClassVar[str]
    section_end: ClassVar[str]
    call_begin: ClassVar[str]
    call_end: ClassVar[str]

    def _calls(self) -> Steps[None]:
        while True:
            marker = yield from self._text_before(self.section_begin, self.section_end, self.call_begin)
            if marker == self.section_end and self.has_calls:
                self._reader.release()
                continue
            if marker == self.section_begin:
                yield from self._reader.skip()
                marker = yield from self._reader.accept(self.call_begin)
            if marker == self.call_begin:
                yield from self._close((yield from self._named_call()), self.call_end)
            else:
                self._no_call()

    @abstractmethod
    def _named_call(self) -> Steps[Outcome]:
        """The name and the arguments between the markers of a call."""
