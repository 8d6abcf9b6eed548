"""Separates thinking from the answer, in a text that arrives in pieces: the formats by the names of
`--reasoning-parser`.

Like the reading of calls (`function_call/base_detector.py`), by what the text is and never by where a piece ends. White
space at either end of a thought is dropped, and nothing else is lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser import harmony
from mysglang.srt.parser.text_reader import Into, Reading, Steps, TextReader

Kind: TypeAlias = Literal["thought", "answer"]

THINK, THINK_END = "<think>", "</think>"

MAX_TAG = 64
"""Characters of a tag that has no name."""

BETWEEN = "..."
"""Separator of the two tags of a pair that has no name: `--reasoning-parser "<plan>...</plan>"`."""


class Part(NamedTuple):
    """The next characters of an answer, and whether they are a thought."""

    kind: Kind
    text: str


class ReasoningParser(ABC):
    """Separates the thoughts in one answer from its text."""

    def __init__(self) -> None:
        self._reader = TextReader()
        self._parts: list[Part] = []
        self._spaces: list[str] = []
        self._held_is: Into = self._answer
        """How the held text is reported if the text ends now."""
        self._goes_on = False
        """True if the text begins within the text of a thought."""
        self._reading = Reading(self._reader, self._read(), lambda text: self._held_is(text))

    @property
    def passes_text(self) -> bool:
        """True if all further text is answer."""
        return self._reading.is_over and self._held_is == self._answer

    def go_on(self) -> None:
        """Notes, before the first text, that this goes on with the text of a thought: white space belongs to it."""
        self._goes_on = True

    def feed(self, text: str) -> list[Part]:
        """Takes the next text, and returns the parts that it adds."""
        self._reading.feed(text)
        return self._take_parts()

    def finish(self) -> list[Part]:
        """Returns the parts of the text that was held back, because the text has ended."""
        self._reading.finish()
        return self._take_parts()

    def detect_and_parse(self, text: str) -> tuple[str, str]:
        """Returns the thoughts and the answer of a whole text."""
        parts = [*self.feed(text), *self.finish()]
        return join(parts, "thought"), join(parts, "answer")

    @abstractmethod
    def _read(self) -> Steps[None]:
        """Reads the text, and returns when only the answer follows."""

    def _answer(self, text: str) -> None:
        if text:
            self._parts.append(Part("answer", text))

    def _thought(self, text: str) -> None:
        """Reports white space only together with the thought after it, if there is one."""
        kept = text.rstrip()
        if kept:
            self._parts.append(Part("thought", "".join([*self._spaces, kept])))
            self._spaces.clear()
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _thought_over(self) -> None:
        """Makes another thought, if one follows, begin on a line of its own."""
        self._spaces[:] = ["\n"]

    def _take_parts(self) -> list[Part]:
        if len(self._parts) <= 1:
            told, self._parts = self._parts, []
            return told
        grouped = groupby(self._parts, itemgetter(0))
        told = [Part(kind, "".join(part.text for part in group)) for kind, group in grouped]
        self._parts.clear()
        return told


class TagParser(ReasoningParser):
    """Reads thoughts at the beginning of an answer, between two tags; several pairs may follow each other."""

    def __init__(
        self, start: str, end: str, *, thinking: bool, interrupts: tuple[str, ...] = (), heads: tuple[str, ...] = ()
    ) -> None:
        """`thinking`: True if the text begins inside a thought. `interrupts`: strings that end a thought without its
        end tag, and are part of the answer. `heads`: tags that say nothing before an answer without a thought.
        """
        super().__init__()
        self._start, self._end = start, end
        self._thinking = thinking
        self._interrupts = interrupts
        self._heads = heads

    def _read(self) -> Steps[None]:
        reader, thinking = self._reader, self._thinking
        while True:
            if not self._goes_on:
                reader.hold()
                self._held_is = self._thought if thinking else self._answer
                yield from reader.skip()
                begun = yield from reader.accept(self._start, *self._heads)
                if not begun and not thinking:
                    return
                reader.release()
                self._held_is = self._answer
                yield from reader.skip()
                if begun in self._heads:
                    return
            self._goes_on = False
            marker = yield from reader.until((self._end, *self._interrupts), self._thought)
            self._thought_over()
            if marker != self._end:
                self._answer(marker)
                return
            yield from reader.skip()
            thinking = False


class BlockParser(ReasoningParser):
    """Reads thoughts anywhere in an answer, between two tags."""

    def __init__(self, blocks: BlockFormat, *, thinking: bool) -> None:
        """`thinking`: True if the text begins inside a thought."""
        super().__init__()
        self._blocks = blocks
        self._thinking = thinking

    def _read(self) -> Steps[None]:
        reader, blocks = self._reader, self._blocks
        thinking = self._thinking
        while True:
            while not thinking:
                thinking = (yield from reader.until((blocks.start, *blocks.dropped), self._answer)) == blocks.start
            if not self._goes_on:
                yield from reader.skip()
            self._goes_on = False
            while thinking:
                marker = yield from reader.until((blocks.end, blocks.calls), self._thought)
                self._thought_over()
                if marker == blocks.end:
                    yield from reader.skip()
                    thinking = False
                else:
                    self._answer(marker)
                    self._answer((yield from reader.until((blocks.calls_end,), self._answer)))


class AppendThink(ReasoningParser):
    """Leaves thoughts in the answer, and begins it with the tag that the prompt ended with."""

    def __init__(self, begun: str) -> None:
        """`begun`: this tag; empty if the prompt ended with another text."""
        super().__init__()
        self._begun = begun

    def _read(self) -> Steps[None]:
        self._answer(self._begun)
        return  # the rest is answer as it stands
        yield


class HarmonyParser(ReasoningParser):
    """Reads harmony messages by their channel: analysis is thought, messages to tools stay unchanged, the rest is the
    answer.
    """

    def _read(self) -> Steps[None]:
        reader = self._reader
        marker = before = ""
        if (yield from harmony.read_first(reader)):
            marker, before = reader.release(), harmony.PROMPTED
        else:
            self._answer(reader.release())
        while True:
            if not before and marker not in harmony.HEADS:
                marker = yield from reader.until((*harmony.HEADS, *harmony.ENDS), self._answer)
                continue
            reader.hold(marker)
            head = yield from harmony.read_head(reader, before + marker)
            said, marker = reader.release(), ""
            if head is None:
                self._answer(said)
            elif head.recipient:
                self._answer(before + said)
                self._answer((yield from reader.until(harmony.ENDS, self._answer)))
            elif head.channel == "analysis":
                yield from reader.skip()
                marker = yield from reader.until((*harmony.HEADS, *harmony.ENDS), self._thought)
                self._thought_over()
            before = ""


class ReasoningFormat(Protocol):
    """How a model family marks its thoughts."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers that a tokenizer may treat as special tokens. If these were hidden from the text, thoughts could not
        be found.
        """
        ...

    @property
    def end(self) -> str:
        """The text that ends a thought."""
        ...

    @property
    def tags(self) -> tuple[str, str] | None:
        """The texts that begin and end a thought; None if other texts also do."""
        ...

    @property
    def interrupts(self) -> tuple[str, ...]:
        """Texts that also end a thought, and belong to the answer."""
        ...

    def begins_thinking(self, prompt: str | None) -> bool:
        """True if the answer to `prompt` begins inside a thought. The prompt's end may have begun a thought, or ended
        it.
        """
        ...

    def may_begin(self, prompt: str) -> str | None:
        """Returns the text that may begin a thought in the answer to `prompt`. None: the answer begins in a thought, or
        the thinking is over.
        """
        ...

    def open(self, prompt: str | None = None) -> ReasoningParser:
        """Returns a parser for the answer to `prompt`."""
        ...


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Thoughts between two tags, such as `<think>` and `</think>`."""

    start: str
    end: str
    thinks_first: bool = False
    """True if an answer begins inside a thought when the prompt does not decide it."""
    interrupts: tuple[str, ...] = ()
    end_alone: bool = False
    """True if an answer without a thought may begin with the end tag."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.start, self.end)

    @property
    def tags(self) -> tuple[str, str]:
        return (self.start, self.end)

    def begins_thinking(self, prompt: str | None) -> bool:
        last = "" if prompt is None else prompt.rstrip()
        return last.endswith(self.start) or (self.thinks_first and not last.endswith(self.end))

    def may_begin(self, prompt: str) -> str | None:
        return None if self.begins_thinking(prompt) or prompt.rstrip().endswith(self.end) else self.start

    def open(self, prompt: str | None = None) -> ReasoningParser:
        thinking = self.begins_thinking(prompt)
        heads = (self.end,) if self.end_alone and not thinking else ()
        return TagParser(self.start, self.end, thinking=thinking, interrupts=self.interrupts, heads=heads)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Thoughts between two tags that may come anywhere."""

    start: str
    end: str
    calls: str
    """The text that begins calls. They belong to the answer, also inside a thought."""
    calls_end: str
    interrupts: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Tags in or around the answer, which say nothing."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.start, self.end, *self.dropped)

    @property
    def tags(self) -> tuple[str, str]:
        return (self.start, self.end)

    def begins_thinking(self, prompt: str | None) -> bool:
        return prompt is not None and prompt.rstrip().endswith(self.start)

    def may_begin(self, prompt: str) -> str | None:
        return None if self.begins_thinking(prompt) or prompt.rstrip().endswith(self.end) else self.start

    def open(self, prompt: str | None = None) -> ReasoningParser:
        return BlockParser(self, thinking=self.begins_thinking(prompt))


@dataclass(frozen=True, slots=True)
class AppendThinkFormat:
    """The format that MiniMax advises: thoughts stay in the content."""

    markers: tuple[str, ...] = ()
    end: str = THINK_END
    tags: None = None
    interrupts: tuple[str, ...] = ()

    def begins_thinking(self, prompt: str | None) -> bool:
        return prompt is None or prompt.rstrip().endswith(THINK)

    def may_begin(self, prompt: str) -> str | None:
        return None if prompt.rstrip().endswith((THINK, self.end)) else THINK

    def open(self, prompt: str | None = None) -> ReasoningParser:
        return AppendThink(THINK if self.begins_thinking(prompt) else "")


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """The harmony format of gpt-oss."""

    markers: tuple[str, ...] = harmony.MARKERS
    end: str = harmony.END
    tags: None = None
    interrupts: tuple[str, ...] = ()

    def begins_thinking(self, prompt: str | None) -> bool:
        return False  # each answer says by its first head what it begins with

    def may_begin(self, prompt: str) -> str | None:
        return None

    def open(self, prompt: str | None = None) -> ReasoningParser:
        return HarmonyParser()


MARKED = TagFormat(THINK, THINK_END)
"""The format of most models; an answer begins in a thought only if the prompt ends with the mark."""
_CALLING = TagFormat(THINK, THINK_END, interrupts=("<tool_call>",))
"""Models that call tools with this tag, and sometimes forget to end the thought before."""
_FIRST = TagFormat(THINK, THINK_END, thinks_first=True)
_CALLING_FIRST = replace(_CALLING, thinks_first=True)

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "apertus2509": BlockFormat("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"),
    "cohere_command4": BlockFormat(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        # Command R7B and Command A have the second pair.
        dropped=("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "deepseek-r1": _FIRST,
    "deepseek-v3": MARKED,
    "deepseek-v4": MARKED,
    "gemma4": BlockFormat(
        "<|channel>thought",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        # Gemma 4 also writes either half of the tags alone.
        dropped=("<|channel>", "<channel|>"),
    ),
    "glm45": _CALLING,
    "gpt-oss": HarmonyFormat(),
    "granite_thinking_parser": MARKED,
    "hunyuan": TagFormat(THINK, THINK_END, interrupts=("<tool_calls>",)),
    "interns1": _CALLING,
    "kimi": TagFormat("◁think▷", "◁/think▷"),
    "kimi_k2": TagFormat(THINK, THINK_END, interrupts=("<|tool_calls_section_begin|>",)),
    "mimo": _CALLING,
    "minimax": TagFormat(THINK, THINK_END, thinks_first=True, interrupts=("<minimax:tool_call>",)),
    "minimax-append-think": AppendThinkFormat(),
    "minimax-m3": TagFormat("<mm:think>", "</mm:think>", interrupts=("]<]minimax[>[<tool_call>",), end_alone=True),
    "mistral": TagFormat("[THINK]", "[/THINK]"),
    "nemotron_3": _CALLING_FIRST,
    "qwen3": _CALLING,
    "qwen3-thinking": _CALLING_FIRST,
    "seed_oss": TagFormat("<seed:think>", "</seed:think>", interrupts=("<seed:tool_call>",)),
    "step3": _FIRST,
    "step3p5": _FIRST,
}
"""SGLang's names, but for seed_oss, which is vLLM's."""

_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>",), "gpt-oss"),
    (("<|channel>",), "gemma4"),
    (("<|START_THINKING|>",), "cohere_command4"),
    (("<|inner_prefix|>",), "apertus2509"),
    (("◁think▷",), "kimi"),
    (("<mm:think>",), "minimax-m3"),
    (("[THINK]",), "mistral"),
    # The tags are the same here, and only what interrupts a thought is not.
    ((THINK, "<|tool_calls_section_begin|>"), "kimi_k2"),
    ((THINK, "<minimax:tool_call>"), "minimax"),
    ((THINK, "<tool_calls>", "<tool_sep>"), "hunyuan"),
    ((THINK,), "qwen3"),
    (("<seed:think>",), "seed_oss"),
    # A template that takes thoughts out of earlier answers knows where they end, and no more.
    ((THINK_END,), "qwen3"),
)


def reasoning_format(name: str) -> ReasoningFormat:
    """Returns the format of that name, or of two tags with `...` between them. Raises InvalidRequest for an unknown
    name.
    """
    if name in REASONING_FORMATS:
        return REASONING_FORMATS[name]
    start, _, end = name.partition(BETWEEN)
    if 0 < len(start.strip()) <= MAX_TAG and 0 < len(end.strip()) <= MAX_TAG:
        return TagFormat(start.strip(), end.strip())
    known = ", ".join(REASONING_FORMATS)
    message = f"reasoning_parser must be one of {known}, or two tags as <start>{BETWEEN}<end>; got {name!r}."
    raise InvalidRequest(message, param="reasoning_parser")


def continued(reasoning: ReasoningFormat, prompt: str, said: str) -> str:
    """Returns the text that takes the place of `prompt` in a format's methods, if the prompt ends with `said`, the
    beginning of the answer: that shows whether the answer goes on in a thought.
    """
    if reasoning.tags is None or not said.strip():
        return prompt
    start, end = reasoning.tags
    begun, ended = said.rfind(start), said.rfind(end)
    if begun == ended:  # neither is there: it is a thought if the template has begun one before it
        before, found, _ = prompt.rpartition(said.strip())
        return start if found and before.rstrip().endswith(start) else end
    return start if begun > ended else end


def open_continued(reasoning: ReasoningFormat, place: str, said: str) -> ReasoningParser:
    """Returns a parser of the answer that goes on after `said`, its beginning. `place`: what `continued` returned."""
    parser = reasoning.open(place)
    in_thought = reasoning.tags is not None and said and place == reasoning.tags[0]
    if in_thought and not said.rstrip().endswith(place):  # the thought has some text
        parser.go_on()
    return parser


def format_of(template: str) -> str | None:
    """Returns the name of the format in which a chat template writes thoughts; None if it shows no known one."""
    return next((name for signs, name in _SIGNS if all(sign in template for sign in signs)), None)


def join(parts: Iterable[Part], kind: Kind) -> str:
    """Returns the joined text of all parts of that kind."""
    return "".join(part.text for part in parts if part.kind == kind)
