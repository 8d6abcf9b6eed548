"""Which tokens say a text that a grammar forces, as far as what follows it cannot change them."""

from __future__ import annotations

from functools import lru_cache

from mysglang.srt.constrained.answer_grammar import Cut
from mysglang.srt.utils.tokenizer import Tokenizer

TEXTS = 4096
"""Kept with their tokens: those of one grammar come again in each of its answers."""
LONGEST = 1024
"""Characters of a text that is looked at; a longer one is forced in several pieces."""


def cutter(tokenizer: Tokenizer) -> Cut:
    """Returns a function that tokenizes a text without its last token, because the following text may merge with
    that.
    """

    @lru_cache(TEXTS)
    def cut(text: str) -> tuple[int, ...]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        # Some tokenizers put a space before every text, and a special token has no text.
        pieces = [b"" if token in tokenizer.special_ids else tokenizer.token_bytes(token) for token in ids]
        return tuple(ids[:-1]) if b"".join(pieces) == text.encode() else ()

    return lambda text: cut(text[:LONGEST]) if text else ()
