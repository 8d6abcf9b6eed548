"""Grammar: what one answer may say next. Protocols and null objects; `constrained/` compiles and implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mysglang.srt.forward.worker_batch import Ints


class Grammar(Protocol):
    """Follows the answer of one request, token by token. Its state is that after the tokens it accepted."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow, the end-of-sequence token included."""
        ...

    @property
    def too_slow(self) -> bool:
        """Whether it was given up because its steps take so long that others wait: it accepts and allows nothing."""
        ...

    def accept(self, token: int) -> bool:
        """Take the next token. False: it is not allowed here, or the grammar cannot go on; there is no way back."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever the model says; none if that is not known, or the choice is its own."""
        ...

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back, as speculative decoding does with what was not accepted."""
        ...


class MaskFiller(Protocol):
    """Writes what grammars allow as bit masks."""

    def fill(self, grammars: Sequence[Grammar], bits: Ints) -> None:
        """Row i of `bits` becomes the mask of the tokens that grammars[i] allows next (see `TokenMask`).

        bits: [len(grammars), words], contiguous. A grammar that cannot go on allows nothing; nothing is set behind the
        last token of the vocabulary.
        """
        ...


class NoGrammars:
    """For a scheduler whose role lets no request with a grammar pass."""

    def fill(self, grammars: Sequence[Grammar], bits: Ints) -> None:
        raise AssertionError("a request has a grammar that nobody made")
