"""Restrictions of one answer's next token: its Grammar, and its TokenRules. `token_masks.py` makes the masks of a step
from both.

`Grammar` and `MaskFiller` are protocols with null objects; `constrained/` compiles and implements them.

`TokenRules` are the tokens that one request may never have, and those that it may not have after certain others. They
follow from the request's parameters and its tokens alone, so there is no state to keep: a request that was retracted
and is computed again has the same rules. They know ids only; the front has turned words into ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from mysglang.srt.forward.worker_batch import Ints, mask_words


class Grammar(Protocol):
    """Follows the answer of one request, token by token. Its state is that after the tokens it accepted."""

    @property
    def finished(self) -> bool:
        """True if the answer is complete and nothing may follow, not even the end-of-sequence token."""
        ...

    @property
    def too_slow(self) -> bool:
        """True if the grammar was given up because its steps delay others: it accepts and allows nothing."""
        ...

    def accept(self, token: int) -> bool:
        """Takes the next token. Returns False if it is not allowed here, or if the grammar cannot continue; then it
        cannot be used any more.
        """
        ...

    def forced(self) -> Sequence[int]:
        """Returns the next tokens if the grammar leaves no choice; empty if that is not known, or if there is a
        choice.
        """
        ...

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens, as speculative decoding does with drafts that were not accepted."""
        ...


class MaskFiller(Protocol):
    """Writes what grammars allow as bit masks."""

    def fill(self, grammars: Sequence[Grammar], bits: Ints) -> None:
        """Fills row i of `bits` with the mask of the tokens that grammars[i] allows next (see `TokenMask`).

        bits: [len(grammars), words], contiguous. A grammar that cannot continue allows no token. No bit is set behind
        the last token of the vocabulary.
        """
        ...


class NoGrammars:
    """A null object for a scheduler whose role admits no request with a grammar."""

    def fill(self, grammars: Sequence[Grammar], bits: Ints) -> None:
        raise AssertionError("a request has a grammar that was not compiled")


ID_BYTES = 4


class Phrases:
    """Sequences of two tokens or more that may not be in an answer: the last one is forbidden after the others.

    They are found by all tokens but the last, so that a step takes time for each length of them and not for each
    phrase: a request may forbid thousands, and every step of the batch waits for it.
    """

    __slots__ = ("_lasts", "_lengths")

    def __init__(self, words: Iterable[Ints]) -> None:
        lasts = defaultdict[bytes, list[int]](list)
        for word in words:
            lasts[word[:-1].tobytes()].append(int(word[-1]))
        self._lasts = {head: np.asarray(found, dtype=np.int32) for head, found in lasts.items()}
        self._lengths = sorted({len(head) for head in lasts})
        """Lengths in bytes of all texts that come before a last token."""

    def after(self, output: Ints) -> Iterator[Ints]:
        """Yields the tokens that are forbidden after `output`, in a few pieces."""
        if not self._lengths:
            return
        tail = np.ascontiguousarray(output[-(self._lengths[-1] // ID_BYTES) :], dtype=np.int32).tobytes()
        for length in self._lengths:
            if length > len(tail):
                return
            if (found := self._lasts.get(tail[-length:])) is not None:
                yield found


class TokenRules:
    """Tokens that the masks of one request leave out. A mask is a row of `TokenMask.bits`."""

    __slots__ = ("_phrases", "_static")

    def __init__(self, static: Ints, phrases: Phrases) -> None:
        """`static`: [words], the mask that holds in every step."""
        self._static = static
        self._phrases = phrases

    def apply(self, bits: Ints, output: Ints) -> None:
        """Forbids, in a mask, the tokens that are forbidden after the generated tokens `output`."""
        bits &= self._static
        for lasts in self._phrases.after(output):
            clear_bits(bits, lasts)

    def allow(self, token: int, output: Ints) -> bool:
        """True if `token` may follow `output`. A token that was chosen under an empty mask may not."""
        if not int(self._static[token >> 5]) >> (token & 31) & 1:
            return False
        return not any(token in lasts for lasts in self._phrases.after(output))


def token_rules(allowed: Sequence[int] | None, bad_words: Iterable[Ints], vocab_size: int) -> TokenRules | None:
    """Returns the rules of a request; None if it has none.

    allowed: the only tokens that it may have, None for all; bad_words: sequences that it may not hold, each of one
    token or more. All ids are inside the vocabulary.
    """
    words = list(bad_words)
    if allowed is None and not words:
        return None
    static: Ints = np.full(mask_words(vocab_size), -1 if allowed is None else 0, dtype=np.int32)
    if allowed is not None:
        ids = np.asarray(allowed, dtype=np.int32)
        np.bitwise_or.at(static.view(np.uint32), ids >> 5, _bit_of(ids))
    singles = [int(word[0]) for word in words if len(word) == 1]
    clear_bits(static, np.asarray(singles, dtype=np.int32))
    return TokenRules(static, Phrases(word for word in words if len(word) > 1))


def clear_bits(bits: Ints, ids: Ints) -> None:
    """Forbids these tokens in a mask, in place."""
    np.bitwise_and.at(bits.view(np.uint32), ids >> 5, ~_bit_of(ids))


def _bit_of(ids: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return np.uint32(1) << (ids & 31).astype(np.uint32)
