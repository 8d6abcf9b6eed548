"""What followed the end of a text when it stood there before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mysglang.srt.scheduling.drafts import MATCH, Ints, NgramIndex


def ids(text: str) -> Ints:
    return np.asarray([ord(letter) for letter in text], dtype=np.int32)


def said(found: Ints | None) -> str | None:
    return None if found is None else "".join(map(chr, found))


def slow(tokens: Ints, count: int) -> Ints | None:
    """The reference: look at every place, the last first."""
    known = len(tokens)
    for end in range(known - 1, MATCH - 1, -1):
        if known >= MATCH and np.array_equal(tokens[end - MATCH : end], tokens[known - MATCH :]):
            return np.asarray([tokens[end + place % (known - end)] for place in range(count)], dtype=np.int32)
    return None


def test_what_followed_the_last_time() -> None:
    assert said(NgramIndex().propose(ids("the cat sat. a dog ran. the cat"), 5)) == " sat."
    assert said(NgramIndex().propose(ids("abcX abcY abc"), 2)) == "Y "


def test_a_text_that_never_stood_there() -> None:
    assert NgramIndex().propose(ids("abcdefgh"), 4) is None
    assert NgramIndex().propose(ids("ab"), 4) is None
    assert NgramIndex().propose(ids(""), 4) is None


def test_what_repeats_itself_goes_on_so() -> None:
    assert said(NgramIndex().propose(ids("xabababab"), 6)) == "ababab"


@pytest.mark.parametrize("seed", range(10))
def test_as_the_slow_search_finds_it(seed: int) -> None:
    """A text that grows by one token or several, asked at each length."""
    rng = random.Random(seed)
    tokens = np.asarray([rng.randrange(3) for _ in range(300)], dtype=np.int32)
    index, known = NgramIndex(), rng.randrange(60)
    while known < len(tokens):
        found, expected = index.propose(tokens[:known], 7), slow(tokens[:known], 7)
        assert (found is None) == (expected is None)
        assert found is None or np.array_equal(found, expected)
        known += rng.choice([1, 1, 2, 5, 30])


def test_large_token_ids_are_told_apart() -> None:
    high = (1 << 21) - 1
    tokens = np.asarray([high, high, high, 7, high, high, high - 1, 8, high, high, high], dtype=np.int32)
    found = NgramIndex().propose(tokens, 1)
    assert found is not None and found.tolist() == [7]
