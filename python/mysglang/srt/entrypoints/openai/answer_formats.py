"""AnswerFormats: how the served model writes tool calls and thoughts, decided once when a server starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mysglang.srt.entrypoints.openai.answer_parser import NewCallId, any_id
from mysglang.srt.function_call import function_call_parser
from mysglang.srt.function_call.base_detector import FunctionCallDetector
from mysglang.srt.parser import reasoning_parser
from mysglang.srt.parser.reasoning_parser import ReasoningFormat
from mysglang.srt.parser.template_manager import TemplateManager
from mysglang.srt.utils.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of tool calls and thoughts in answers. None: that part is not recognized, and remains text."""

    tool_call_parser: str | None = None
    """The name of the format, as `--tool-call-parser` has it."""
    reasoning_parser: str | None = None
    detector: type[FunctionCallDetector] | None = None
    reasoning: ReasoningFormat | None = None
    calls_are_special: bool = False
    """True if calls are written with special tokens, which must then be shown to be found."""
    thoughts_are_special: bool = False
    thought_ids: tuple[int, int, frozenset[int]] | None = None
    """The tokens that begin and end a thought, where each is one, and those that interrupt it."""

    grammar_backend: str | None = None
    """Name in `--grammar-backend` of the library that enforces grammars; None for the default."""

    @property
    def any_structural_tag(self) -> bool:
        """True if grammars may be structural tags of every form: other backends know the older form only."""
        return self.grammar_backend in (None, "xgrammar")

    @property
    def tags_of_json(self) -> bool:
        """True if grammars may be structural tags of the older form: free text with triggered JSON."""
        return self.grammar_backend != "outlines"

    def call_ids(self, calls_before: int) -> NewCallId:
        """Returns how calls get the ids that the model's template reads. `calls_before`: how many calls the
        conversation has.
        """
        detector = self.detector
        return any_id if detector is None else lambda name, index: detector.new_call_id(name, calls_before + index)

    @property
    def names(self) -> dict[str, str | None]:
        """The formats, under the names of their flags."""
        return {"tool_call_parser": self.tool_call_parser, "reasoning_parser": self.reasoning_parser}

    @classmethod
    def choose(
        cls,
        calls: str | None,
        thoughts: str | None,
        templates: TemplateManager | None,
        tokenizer: Tokenizer | None,
        *,
        grammar_backend: str | None = None,
    ) -> AnswerFormats:
        """Choose the formats that the flags name; "auto" is the format that the chat template shows. Without a
        tokenizer there is no text to parse.
        """
        if templates is None or tokenizer is None:
            return cls()
        calls = function_call_parser.format_of(templates.source) if calls == "auto" else calls
        thoughts = reasoning_parser.format_of(templates.source) if thoughts == "auto" else thoughts
        calls, thoughts = (None if name == "none" else name for name in (calls, thoughts))
        detector = None if calls is None else function_call_parser.detector_class(calls)
        reasoning = None if thoughts is None else reasoning_parser.reasoning_format(thoughts)
        return cls(
            calls,
            thoughts,
            detector,
            reasoning,
            calls_are_special=detector is not None and _special(detector.markers, tokenizer),
            thoughts_are_special=reasoning is not None and _special(reasoning.markers, tokenizer),
            thought_ids=None if reasoning is None else _thought_ids(reasoning, tokenizer),
            grammar_backend=grammar_backend,
        )


def _thought_ids(reasoning: ReasoningFormat, tokenizer: Tokenizer) -> tuple[int, int, frozenset[int]] | None:
    if reasoning.tags is None:
        return None
    start, end = map(tokenizer.id_of, reasoning.tags)
    interrupts = [token_id for token_id in map(tokenizer.id_of, reasoning.interrupts) if token_id is not None]
    return None if start is None or end is None else (start, end, frozenset(interrupts))


def _special(markers: Iterable[str], tokenizer: Tokenizer) -> bool:
    return any(tokenizer.id_of(marker) in tokenizer.special_ids for marker in markers)
