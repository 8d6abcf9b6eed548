"""Tokens that a grammar forces: the tokenizer's for the text that comes next, whatever the model would choose."""

from __future__ import annotations

import json
import random
from typing import cast

import numpy as np
import pytest

from fixtures.grammar_walk import TOKENIZER, VOCABULARY, WORDS, backend_named, compiled
from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import GrammarBackend, JsonStyle, Matcher
from mysglang.srt.constrained.forced_tokens import cutter

SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string", "maxLength": 5}, "is_married": {"type": "boolean"}},
    "required": ["first_name", "is_married"],
    "additionalProperties": False,
}
CUT = cutter(TOKENIZER)


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return backend_named("xgrammar", JsonStyle(any_whitespace=False))


def answer(backend: GrammarBackend, *, thought_end: tuple[int, ...] = ()) -> AnswerGrammar:
    return AnswerGrammar(compiled(backend, "json_schema", json.dumps(SCHEMA)).matcher(), thought_end, cut=CUT)


def text_of(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.pieces[token] for token in tokens).decode()


def allowed(backend: GrammarBackend, grammar: AnswerGrammar) -> list[int]:
    bits = np.zeros((1, WORDS), dtype=np.int32)
    AnswerMasks(lambda: backend, VOCABULARY.size, VOCABULARY.eos_ids).fill([grammar], bits)
    found: list[int] = np.flatnonzero(np.unpackbits(bits[0].view(np.uint8), bitorder="little")).tolist()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_answers_are_valid_and_forced_text_is_cut_as_the_tokenizer_cuts_it(backend: GrammarBackend, seed: int) -> None:
    rng = random.Random(seed)
    grammar, tokens, forced_tokens = answer(backend), [], 0
    while not grammar.finished:
        forced = list(grammar.forced())
        choices = allowed(backend, grammar)
        forced_tokens += len(forced) > 0
        assert not forced or choices == forced[:1]
        # Hurry: what can end a string does.
        ends = [token for token in choices if VOCABULARY.pieces[token].startswith(b'"')]
        tokens.append(rng.choice(ends or choices))
        assert grammar.accept(tokens[-1])
    assert json.loads(text_of(tokens[:-1])).keys() == SCHEMA["properties"].keys()
    assert tokens[-1] in VOCABULARY.eos_ids and forced_tokens > 8


def test_the_last_token_of_a_forced_text_is_the_models(backend: GrammarBackend) -> None:
    """`{"first_name": "` is forced; its last token could grow together with the name."""
    grammar = answer(backend)
    forced = list(grammar.forced())
    whole = TOKENIZER.encode('{"first_name": "', add_special_tokens=False)
    assert forced == whole[:-1] and len(forced) > 3
    for token in forced:
        assert grammar.accept(token)
    assert not grammar.forced()
    assert len(allowed(backend, grammar)) > 1


@pytest.mark.parametrize("words", [["é", "è"], ["日本", "日光"], ["a🙂", "a🙃"]], ids=str)
def test_texts_that_part_inside_a_character(backend: GrammarBackend, words: list[str]) -> None:
    """The first bytes are forced, but they are no text. The answer is one of the words all the same."""
    grammar = AnswerGrammar(compiled(backend, "json_schema", json.dumps({"enum": words})).matcher(), (), cut=CUT)
    tokens: list[int] = []
    while not grammar.finished:
        tokens.append((list(grammar.forced()) or allowed(backend, grammar))[0])
        assert grammar.accept(tokens[-1])
    assert json.loads(text_of(tokens[:-1])) in words


class Faulty:
    """A matcher of a library that fails."""

    finished = False

    def forced_text(self) -> str:
        raise RuntimeError("a fault of the library")


def test_a_matcher_that_fails_forces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert list(AnswerGrammar(cast(Matcher, Faulty()), (), cut=CUT).forced()) == []
    assert "this answer goes on without it" in caplog.text


def test_taking_back_forgets_what_was_forced(backend: GrammarBackend) -> None:
    grammar = answer(backend)
    first, second, *_ = forced = list(grammar.forced())
    assert grammar.accept(first) and grammar.accept(second)
    grammar.rollback(2)
    assert list(grammar.forced()) == forced


@pytest.mark.parametrize("seed", range(4))
def test_looking_ahead_changes_nothing(backend: GrammarBackend, seed: int) -> None:
    """The calls of drafts: up to four forced tokens are taken, masks made between them, and all are taken back. A run
    that was cut again in its middle might become other tokens.
    """
    rng = random.Random(seed)
    plain, ahead, runs = answer(backend), answer(backend), 0
    while not plain.finished:
        forced = list(ahead.forced())
        assert forced == list(plain.forced())
        taken = 0
        for token in forced[: rng.randrange(5)]:
            assert ahead.accept(token)
            allowed(backend, ahead)
            taken += 1
        ahead.rollback(taken)
        runs += taken > 1
        choices = allowed(backend, plain)
        assert choices == allowed(backend, ahead)
        ends = [token for token in choices if VOCABULARY.pieces[token].startswith(b'"')]
        token = rng.choice(ends or choices)
        assert plain.accept(token) and ahead.accept(token)
    assert ahead.finished and runs > 3


def test_nothing_is_forced_while_the_model_thinks(backend: GrammarBackend) -> None:
    (end,) = TOKENIZER.encode("a", add_special_tokens=False)
    grammar = answer(backend, thought_end=(end,))
    assert not grammar.forced()
    assert grammar.accept(end)
    assert grammar.forced()


def test_nothing_is_forced_unless_asked_for(backend: GrammarBackend) -> None:
    assert not AnswerGrammar(compiled(backend, "json_schema", json.dumps(SCHEMA)).matcher()).forced()


@pytest.mark.parametrize("name", ["llguidance", "outlines"])
def test_other_libraries_do_not_say(name: str) -> None:
    pytest.importorskip("llguidance" if name == "llguidance" else "outlines_core")
    assert not answer(backend_named(name)).forced()


def test_a_text_that_the_tokenizer_does_not_give_back_is_not_forced() -> None:
    """The text of a special token is none."""
    special = TOKENIZER.special_tokens["eos_token"]
    assert CUT(f"a {special} b") == ()
    assert CUT("") == ()


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^[^é]+$", "èa🙂", "é"),
        ("^[^日本]+$", "月a", "日"),
        ("^[^🙂]+$", "🙃é", "🙂"),
        (r"^[^\u0600-\u06ff]+$", "é日", "\u0627"),
        (r"^\S+$", "aé🙂", "\u00a0"),
        (r"^[\s\S]+$", "a é", ""),
        (r"^[^a]+$", "bé🙂", "a"),
    ],
)
def test_characters_that_a_class_leaves_out(name: str, pattern: str, inside: str, outside: str) -> None:
    grammar = compiled(backend_named(name), "json_schema", json.dumps({"type": "string", "pattern": pattern}))

    def takes(text: str) -> bool:
        matcher = grammar.matcher()
        ids = TOKENIZER.encode(json.dumps(text, ensure_ascii=False), add_special_tokens=False)
        return all(matcher.accept(token) for token in ids)

    assert takes(inside)
    assert not any(takes(f"{inside}{each}") for each in outside)
