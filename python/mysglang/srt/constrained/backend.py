"""GrammarBackend: one library that compiles grammars and matches tokens against them, behind one interface.

`compile` runs in a process that may be killed (`compile_process.py`), `load` and all after it in the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import GrammarSpec

MANY = 32
"""Masks from which on several threads are worth their waking."""
FILL_THREADS = 8
"""Largest number of threads that fill masks."""
CORES_BESIDE = 4
"""Cores that compiling grammars leaves alone, if there are more."""


def fill_threads(cores: int) -> int:
    """Returns how many threads write the masks of a step, where a library has threads for that."""
    return max(1, min(FILL_THREADS, cores // 2))


def compile_shares(cores: int) -> tuple[int, int]:
    """Returns how many grammars are compiled at once, and by how many threads each. Some cores are left to the server's
    processes.
    """
    at_once = max(2, min(4, cores // 2))
    return at_once, max(1, (cores - CORES_BESIDE) // at_once)


class GrammarError(Exception):
    """The grammar is wrong, or this library cannot express it; says why in the client's terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonStyle:
    """Separators between the elements of the JSON that a schema describes."""

    any_whitespace: bool = True
    max_whitespace: int | None = None
    """Characters in a row; None: any number."""
    whitespace_pattern: str | None = None
    """A regular expression for it, where the library takes one."""

    @property
    def pattern(self) -> str | None:
        """All allowed whitespace as a regular expression; None: any whitespace."""
        if self.whitespace_pattern is not None:
            return self.whitespace_pattern
        if not self.any_whitespace:
            return ""
        return None if self.max_whitespace is None else rf"[ \n\r\t]{{0,{self.max_whitespace}}}"


class Matcher(Protocol):
    """A compiled grammar and how far one answer has come in it."""

    @property
    def finished(self) -> bool:
        """True if nothing may follow any more, not even EOS."""
        ...

    def accept(self, token: int) -> bool:
        """Takes a token; returns False if it is not allowed."""
        ...

    def forced_text(self) -> str:
        """Returns the text with which every continuation begins, as far as the library knows; may be empty."""
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens."""
        ...


class CompiledGrammar(Protocol):
    """A grammar ready for use by any number of answers."""

    nbytes: int
    """Memory that it takes, about."""

    def matcher(self) -> Matcher:
        """Returns a new matcher for one more answer, at its start."""
        ...


class GrammarBackend(Protocol):
    """A grammar library, bound to the vocabulary of one model."""

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        """Do all slow work for a grammar, with `threads` threads if the library can use several. Raises GrammarError;
        may take any time and memory, or end the process.
        """
        ...

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        """Load the result of `compile` for `spec`, in the process that uses it. Must not hold the GIL for long."""
        ...

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        """Writes the mask of the tokens that matchers[i] allows to bits[rows[i]]; a matcher that failed allows none.

        What is set after the last token of the vocabulary means nothing.
        """
        ...
