"""Token ids to draw from, and the tokenizer that makes texts of them. Reads tokenizer.json; runs no code of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from mysglang.bench.refused import Refused

Longs: TypeAlias = npt.NDArray[np.int64]

FITTING_ROUNDS = 8
"""Random ids seldom survive decoding and encoding; cut and filled so often, nearly all texts have the wanted length."""


class Vocabulary:
    """The ordinary tokens of a model: no special ones, which could end an answer or open a turn."""

    def __init__(self, ids: Longs, tokenizer: Tokenizer | None) -> None:
        self._ids = ids
        self._tokenizer = tokenizer

    @classmethod
    def of_size(cls, size: int) -> Vocabulary:
        """Returns ids below `size` and no texts: for a server without a tokenizer."""
        return cls(np.arange(size, dtype=np.int64), None)

    @classmethod
    def load(cls, name: str) -> Vocabulary:
        """Load the tokenizer of a directory with tokenizer.json, or of a Hugging Face repository. Raises Refused."""
        folder = Path(name)
        try:
            if folder.is_dir():
                tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            else:
                tokenizer = Tokenizer.from_pretrained(name)
        except Exception as error:  # the library raises nothing more special
            raise Refused(f"no tokenizer could be read from {name} ({error}); name one with --tokenizer.") from None
        special = list(tokenizer.get_added_tokens_decoder())
        ids = np.array(sorted(tokenizer.get_vocab(with_added_tokens=True).values()), dtype=np.int64)
        return cls(np.setdiff1d(ids, special), tokenizer)

    @property
    def has_texts(self) -> bool:
        return self._tokenizer is not None

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """Draws `count` token ids, each as likely as any other."""
        drawn: list[int] = rng.choice(self._ids, count).tolist()
        return drawn

    def draw_text(self, rng: np.random.Generator, count: int) -> str:
        """Returns a text of about `count` tokens, exactly in nearly all cases."""
        ids = self.draw(rng, count)
        for _ in range(FITTING_ROUNDS):
            text = self.decode(ids)
            again = self.encode(text)
            if len(again) == count:
                break
            ids = again[:count] + self.draw(rng, max(0, count - len(again)))
        return text

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of `text`, without special tokens around it. Raises Refused if there is no
        tokenizer.
        """
        ids: list[int] = self._texts().encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._texts().decode(ids, skip_special_tokens=False)
        return text

    def count_tokens(self, texts: list[str]) -> int | None:
        """Returns tokens of all texts, without special ones; None if there is no tokenizer."""
        if self._tokenizer is None:
            return None
        return sum(len(one.ids) for one in self._tokenizer.encode_batch(texts, add_special_tokens=False))

    def _texts(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Refused(
                "this needs a tokenizer: name one with --tokenizer, "
                "or draw token ids with --tokenize-prompt --dataset-name random-ids."
            )
        return self._tokenizer
