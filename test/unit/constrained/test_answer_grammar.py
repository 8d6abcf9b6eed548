"""The grammar of one answer: it begins when the thinking ends; masks of many answers at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fixtures.grammar_walk import EOS, TOKENIZER, VOCABULARY, WORDS, backend_named, compiled
from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import MANY, CompiledGrammar, GrammarBackend, Matcher
from mysglang.srt.forward.worker_batch import Ints

xgrammar = pytest.importorskip("xgrammar")

THOUGHT_END = (7, 8)
A, B = (TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in "ab")
FIRST = [token for token, piece in enumerate(VOCABULARY.pieces) if piece in (b"a", b"aa", b"ab")]
"""Tokens that the grammar `a[ab]` allows at the start."""


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return backend_named("xgrammar")


@pytest.fixture(scope="module")
def grammar(backend: GrammarBackend) -> CompiledGrammar:
    return compiled(backend, "regex", "a[ab]")


def masks(backend: GrammarBackend, *grammars: AnswerGrammar) -> list[list[int]]:
    bits = np.full((len(grammars), WORDS), -1, dtype=np.int32)
    AnswerMasks(lambda: backend, VOCABULARY.size, VOCABULARY.eos_ids).fill(grammars, bits)
    return [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in bits]


def test_thinking_is_free_and_owes_an_answer(backend: GrammarBackend, grammar: CompiledGrammar) -> None:
    answer = AnswerGrammar(grammar.matcher(), THOUGHT_END)
    anything = [token for token in range(VOCABULARY.size) if token not in VOCABULARY.eos_ids]
    for token in (B, 7, B, 8, 7, 7):
        assert answer.thinking and not answer.finished
        assert masks(backend, answer) == [anything]
        assert answer.accept(token)
    assert answer.accept(8)
    assert not answer.thinking
    assert masks(backend, answer) == [FIRST]
    # What looks like the end of thinking is nothing special any more.
    assert not answer.accept(7)


def test_without_thinking_it_begins_at_once(backend: GrammarBackend, grammar: CompiledGrammar) -> None:
    answer = AnswerGrammar(grammar.matcher())
    assert not answer.thinking
    assert masks(backend, answer) == [FIRST]


def test_tokens_are_taken_back_across_the_end_of_thinking(backend: GrammarBackend, grammar: CompiledGrammar) -> None:
    answer = AnswerGrammar(grammar.matcher(), THOUGHT_END)
    for token in (B, 7, 8, A, B, EOS):
        assert answer.accept(token)
    assert answer.finished
    answer.rollback(2)
    assert {A, B} <= set(masks(backend, answer)[0])
    answer.rollback(2)
    assert answer.thinking
    for token in (8, A, A, EOS):
        assert answer.accept(token)
    assert answer.finished


@pytest.mark.promise(35)
@pytest.mark.parametrize("count", [2, MANY + 1])
def test_promise_35_a_library_that_fails_ends_one_answer(
    backend: GrammarBackend, grammar: CompiledGrammar, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """The exception of a library in Rust."""

    answers = [AnswerGrammar(grammar.matcher()) for _ in range(count)]
    fill = backend.fill

    def failing(matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        if answers[1].matcher in matchers:
            raise Panic
        fill(matchers, bits, rows)

    monkeypatch.setattr(backend, "fill", failing)
    assert masks(backend, *answers) == [[] if place == 1 else FIRST for place in range(count)]

    class Broken:
        finished = False

        def accept(self, token: int) -> bool:
            raise Panic

    assert not AnswerGrammar(Broken()).accept(A)  # type: ignore[arg-type]


def test_thinking_may_be_left_out(backend: GrammarBackend, grammar: CompiledGrammar) -> None:
    """The first token decides; after it nothing begins a thought any more."""
    start = 9
    answer = AnswerGrammar(grammar.matcher(), THOUGHT_END, start)
    assert masks(backend, answer) == [sorted([*FIRST, start])]
    assert answer.accept(A)
    assert start not in masks(backend, answer)[0]
    answer.rollback(1)
    for token in (start, B, start, 7, 8):
        assert not answer.finished
        assert answer.accept(token)
    assert masks(backend, answer) == [FIRST]
    answer.rollback(5)
    assert masks(backend, answer) == [sorted([*FIRST, start])]
    for token in (start, 7, 8, A, A, EOS):
        assert answer.accept(token)
    assert answer.finished


def test_answers_in_all_states_together(backend: GrammarBackend, grammar: CompiledGrammar) -> None:
    """Nothing is set after the last token, whatever the library writes there."""
    strings = compiled(backend, "json_schema", '{"type": "string"}')
    quote = TOKENIZER.encode('"', add_special_tokens=False)[0]
    together = [
        AnswerGrammar(strings.matcher()),
        AnswerGrammar(grammar.matcher(), (7,)),
        AnswerGrammar(grammar.matcher()),
    ]
    assert together[0].accept(quote)
    found = masks(backend, *together)
    assert found == [masks(backend, one)[0] for one in together]
    assert all(max(row) < VOCABULARY.size for row in found)
    assert len(found[0]) > 1000 and found[2] == FIRST
