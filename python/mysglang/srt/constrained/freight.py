"""Freight: how grammars that one rank had compiled come to the ranks that follow it.

    first rank   compile process ──▶ load ──▶ news of the grammar, with what was compiled ──▶ other ranks: load

Only the first rank has a process that compiles. Every rank needs the grammars themselves: whether an answer is complete
decides what is planned next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from mysglang.srt.constrained.backend import CompiledGrammar, GrammarBackend, Matcher
from mysglang.srt.constrained.compiler import Outcome
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import GrammarSpec


class Freight(Protocol):
    """Carries compiled grammars from the first rank to the others, together with the news that they are loaded."""

    def pack(self, spec: GrammarSpec) -> bytes:
        """Returns, on the first rank, the data from which its oldest loaded and not yet packed grammar of this spec was
        made.
        """
        ...

    def unpack(self, spec: GrammarSpec, data: bytes) -> CompiledGrammar:
        """Returns, on another rank, the grammar.

        Raises what the backend's `load` raises, which must end the rank: the first rank has loaded the same data, and
        ranks must not differ.
        """
        ...


class NoFreight:
    """A null object for a server with one rank: no grammar is sent to other ranks."""

    def pack(self, spec: GrammarSpec) -> bytes:
        return b""

    def unpack(self, spec: GrammarSpec, data: bytes) -> CompiledGrammar:
        raise AssertionError("a rank alone loads its grammars itself")


class SharedBackend:
    """A GrammarBackend that keeps the data from which it loaded grammars, for the other ranks (a `Freight`)."""

    def __init__(self, make_backend: Callable[[], GrammarBackend]) -> None:
        """`make_backend` is called in any thread, each time the backend is needed; it must cache its result."""
        self._backend = make_backend
        self._loaded_from: dict[GrammarSpec, deque[bytes]] = {}

    def ready(self) -> Self:
        """Loads the backend and returns itself. Raises what its maker raises."""
        self._backend()
        return self

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        return self._backend().compile(spec, threads)

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        loaded = self._backend().load(spec, data)
        self._loaded_from.setdefault(spec, deque()).append(bytes(data))
        return loaded

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        self._backend().fill(matchers, bits, rows)

    def pack(self, spec: GrammarSpec) -> bytes:
        kept = self._loaded_from[spec]
        data = kept.popleft()
        if not kept:
            del self._loaded_from[spec]
        return data

    def unpack(self, spec: GrammarSpec, data: bytes) -> CompiledGrammar:
        return self._backend().load(spec, data)


class CompiledElsewhere:
    """The Compiler of a rank other than the first: the first rank sends it the outcome of every grammar."""

    def submit(self, spec: GrammarSpec, tenant: str) -> None:
        pass

    def withdraw(self, spec: GrammarSpec, tenant: str) -> None:
        pass

    def finished(self) -> list[tuple[GrammarSpec, Outcome]]:
        return []
