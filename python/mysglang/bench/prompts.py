"""Prompt: one request of a workload; and its two writers, of texts and of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from mysglang.bench.vocabulary import Vocabulary

Content: TypeAlias = str | list[int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the wanted length of its answer. `prompt_len` is in tokens, without the additions of a chat
    template.
    """

    content: Content
    prompt_len: int
    output_len: int


class Writer(Protocol):
    """Makes the contents of prompts, all in one kind."""

    def draw(self, rng: np.random.Generator, count: int) -> Content:
        """Draws random content of `count` tokens."""
        ...

    def of_ids(self, ids: list[int]) -> Content: ...

    def of_text(self, text: str) -> Content: ...

    def join(self, first: Content, second: Content) -> Content:
        """Returns both contents, the second below the first."""
        ...

    def prompt(self, content: Content, output_len: int) -> Prompt:
        """Makes a prompt of `content` and counts its tokens."""
        ...


class IdWriter:
    """Writes prompts of token ids: no tokenizer runs while the server is measured, and lengths are exact."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def draw(self, rng: np.random.Generator, count: int) -> Content:
        return self._vocabulary.draw(rng, count)

    def of_ids(self, ids: list[int]) -> Content:
        return ids

    def of_text(self, text: str) -> Content:
        return self._vocabulary.encode(text)

    def join(self, first: Content, second: Content) -> Content:
        assert isinstance(first, list) and isinstance(second, list)
        return first + second

    def prompt(self, content: Content, output_len: int) -> Prompt:
        return Prompt(content, len(content), output_len)


class TextWriter:
    """Writes prompts as text, as users send them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def draw(self, rng: np.random.Generator, count: int) -> Content:
        return self._vocabulary.draw_text(rng, count)

    def of_ids(self, ids: list[int]) -> Content:
        return self._vocabulary.decode(ids)

    def of_text(self, text: str) -> Content:
        return text

    def join(self, first: Content, second: Content) -> Content:
        return f"{first}\n\n{second}"

    def prompt(self, content: Content, output_len: int) -> Prompt:
        assert isinstance(content, str)
        return Prompt(content, len(self._vocabulary.encode(content)), output_len)
