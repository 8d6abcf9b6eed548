"""Whitespace in JSON is limited beside the grammar: as a slow count of the whole text says, through all that is taken
back, and never so that nothing may follow.
"""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from fixtures.grammar_walk import EOS, TOKENIZER, VOCABULARY, WORDS, allowed, backend_named, compiled
from mysglang.srt.constrained.backend import GrammarBackend, JsonStyle, Matcher
from mysglang.srt.constrained.json_spaces import MOST_SPACES, SPACES, SpacedBackend, place_after
from mysglang.srt.sampling.grammar_spec import ANY_JSON

BEGUN_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)', re.DOTALL)


@pytest.fixture(scope="module", params=["xgrammar", "llguidance", "outlines"])
def inner(request: pytest.FixtureRequest) -> GrammarBackend:
    pytest.importorskip("outlines_core" if request.param == "outlines" else request.param)
    return backend_named(request.param, JsonStyle())


def spaces_before(text: bytes) -> int:
    """The reference: whitespace at the end of a text, outside of strings, which may be begun."""
    without = BEGUN_STRING.sub(b"x", text)
    return len(without) - len(without.rstrip(SPACES))


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_of_the_whole_text(seed: int) -> None:
    rng = random.Random(seed)
    text, place = b"", 0
    for _ in range(200):
        piece = bytes(rng.choices(b' \n\t\r"\\a{,', k=rng.randrange(4)))
        text, place = text + piece, place_after(place, piece)
        assert max(place, 0) == spaces_before(text)


def fills(matcher: Matcher, text: str) -> None:
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        assert matcher.accept(token)


@pytest.mark.parametrize("seed", range(3))
def test_masks_are_narrower_where_there_is_enough(inner: GrammarBackend, seed: int) -> None:
    """A model that loves whitespace, with drafts that are taken back."""
    rng = random.Random(seed)
    backend = SpacedBackend(inner, VOCABULARY)
    schema = json.dumps({"type": "object", "properties": {"a b": {"enum": ["  x", 1]}}, "required": ["a b"]})
    matcher = compiled(backend, "json_schema", schema).matcher()
    reference = compiled(inner, "json_schema", schema).matcher()
    taken: list[int] = []
    narrowed = 0
    for _ in range(2000):
        free, held = allowed(inner, reference), allowed(backend, matcher)
        said = b"".join(VOCABULARY.pieces[token] for token in taken)
        others = [token for token in free if VOCABULARY.pieces[token][:1] not in SPACES or not VOCABULARY.pieces[token]]
        full = spaces_before(said) >= MOST_SPACES
        assert held == (others if full and others else free)
        narrowed += held != free
        if taken and rng.random() < 0.1:
            count = rng.randrange(1, min(len(taken), 8) + 1)
            for one in (matcher, reference):
                one.rollback(count)
            del taken[-count:]
            continue
        spaces = [token for token in held if VOCABULARY.pieces[token][:1] in SPACES and VOCABULARY.pieces[token]]
        token = rng.choice(spaces if spaces and rng.random() < 0.99 else held)
        assert matcher.accept(token) and reference.accept(token)
        taken.append(token)
        if token == EOS or matcher.finished:
            break
    assert narrowed


def test_other_grammars_may_have_any_whitespace(inner: GrammarBackend) -> None:
    backend = SpacedBackend(inner, VOCABULARY)
    matcher = compiled(backend, "regex", " *x").matcher()
    fills(matcher, " " * (2 * MOST_SPACES))
    assert any(VOCABULARY.pieces[token] == b" " for token in allowed(backend, matcher))


def test_whitespace_in_strings_is_text() -> None:
    backend = SpacedBackend(backend_named("xgrammar", JsonStyle()), VOCABULARY)
    matcher = compiled(backend, "json_schema", ANY_JSON).matcher()
    fills(matcher, '["' + " " * (2 * MOST_SPACES))
    assert any(VOCABULARY.pieces[token] == b" " for token in allowed(backend, matcher))
    fills(matcher, '"' + "\n" * MOST_SPACES)
    assert {VOCABULARY.pieces[token][:1] for token in allowed(backend, matcher)} == {b",", b"]"}


class OnlySpaces:
    """A library whose grammar allows a space and nothing else; it sets bits behind the vocabulary too."""

    nbytes = 1
    finished = False

    def compile(self, *_: object) -> bytes:
        return b""

    def load(self, *_: object) -> OnlySpaces:
        return self

    def matcher(self) -> OnlySpaces:
        return self

    def accept(self, token: int) -> bool:
        return True

    def forced_text(self) -> str:
        return ""

    def rollback(self, count: int) -> None:
        pass

    def fill(self, matchers: object, bits: np.ndarray[tuple[int, ...], np.dtype[np.int32]], rows: object) -> None:
        bits[0] = 0
        bits[0].view(np.uint32)[SPACE >> 5] = np.uint32(1 << (SPACE & 31))
        bits[0].view(np.uint32)[-1] |= np.uint32(1 << 31)


SPACE = VOCABULARY.pieces.index(b" ")


def test_something_may_always_follow() -> None:
    backend = SpacedBackend(OnlySpaces(), VOCABULARY)
    matcher = compiled(backend, "json_schema", ANY_JSON).matcher()
    bits = np.zeros((1, WORDS), dtype=np.int32)
    for _ in range(2 * MOST_SPACES):
        assert matcher.accept(SPACE)
    backend.fill([matcher], bits, [0])
    assert bits[0, SPACE >> 5] != 0


def test_whitespace_in_parts_of_an_answer() -> None:
    """Between elements of JSON it is limited, in a string and in the text around it is not."""
    backend = SpacedBackend(backend_named("xgrammar", JsonStyle()), VOCABULARY)
    content = {"type": "json_schema", "json_schema": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}
    tags = [{"type": "tag", "begin": "<c>", "content": content, "end": "</c>"}]
    form = {"type": "triggered_tags", "triggers": ["<c>"], "tags": tags}
    matcher = compiled(backend, "structural_tag", json.dumps({"format": form})).matcher()
    enough = " \n" * MOST_SPACES

    def may_go_on() -> bool:
        pieces = [VOCABULARY.pieces[token] for token in allowed(backend, matcher)]
        return any(piece[:1] in SPACES for piece in pieces if piece)

    for text, limited in (
        (f"I look.{enough}", False),
        ("<c>{", False),
        (enough, True),
        ('"a":', False),
        (enough, True),
        ('"' + " " * len(enough), False),
        (f'x"{enough}', True),
        (f"}}</c>{enough}", False),
    ):
        fills(matcher, text)
        assert may_go_on() is not limited, text
        count = len(TOKENIZER.encode(text, add_special_tokens=False))
        matcher.rollback(count)
        fills(matcher, text)
        assert may_go_on() is not limited, text
