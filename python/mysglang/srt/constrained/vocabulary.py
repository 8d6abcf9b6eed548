"""Vocabulary: what each token of the model adds to a text, as grammar libraries want to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mysglang.srt.utils.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens that the model's logits stand for."""

    pieces: list[bytes]
    """Per token id. Empty for special tokens and for ids without a token: no grammar can be met by these."""
    eos_ids: tuple[int, ...]
    """Tokens that end an answer; none for a model that goes on for ever."""
    special: Mapping[int, bytes] = field(default_factory=dict)
    """Id -> text of the special tokens that do not end an answer."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, eos_ids: tuple[int, ...]) -> Vocabulary:
        """Builds the vocabulary. `vocab_size`: that of the model, which may be larger or smaller than the
        tokenizer's.
        """
        hidden = tokenizer.special_ids.union(eos_ids)
        pieces = [b"" if token in hidden else tokenizer.token_bytes(token) for token in range(vocab_size)]
        named = tokenizer.special_ids.difference(eos_ids)
        return cls(
            pieces, eos_ids, {token: tokenizer.token_text(token).encode() for token in named if token < vocab_size}
        )

    @property
    def size(self) -> int:
        return len(self.pieces)

    def pieces_shown(self) -> list[bytes]:
        """Returns the pieces for a grammar that reads special tokens as text."""
        return [self.special.get(token, piece) for token, piece in enumerate(self.pieces)]
