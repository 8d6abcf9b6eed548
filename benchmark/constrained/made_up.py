"""A made-up vocabulary, as large as Llama 3's, a schema, and documents of it cut into tokens."""

from __future__ import annotations

import json
import random
from typing import Any

from mysglang.srt.constrained.vocabulary import Vocabulary

VOCAB_SIZE = 128_256
SPECIAL = 256
EOS = VOCAB_SIZE - 1
LONGEST = 12
"""Bytes of the longest token looked for."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "home": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}


def made_up_vocabulary() -> Vocabulary:
    """Bytes, words with and without a space before them, numbers, and runs of what JSON is punctuated with."""
    rng = random.Random(0)
    letters, weights = "etaoinshrdlucmfwygpbvk", range(22, 0, -1)
    pieces = {bytes([byte]) for byte in range(256)}
    while len(pieces) < VOCAB_SIZE - SPECIAL:
        word = "".join(rng.choices(letters, weights, k=rng.randint(2, 8)))
        kind = rng.random()
        if kind < 0.5:
            word = " " + word
        elif kind < 0.6:
            word = "".join(rng.choices('",:{}[] \n.', k=rng.randint(2, 4)))
        elif kind < 0.65:
            word = str(rng.randrange(1000))
        elif kind < 0.7:
            word = word.capitalize()
        pieces.add(word.encode())
    return Vocabulary(sorted(pieces) + [b""] * SPECIAL, (EOS,))


def words_of(vocabulary: Vocabulary) -> list[str]:
    """Words from which strings are made."""
    return [piece.decode() for piece in vocabulary.pieces if piece[:1] == b" " and piece[1:].isalpha()][:5000]


def ids_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Piece -> token."""
    return {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}


def document(rng: random.Random, words: list[str]) -> str:
    """JSON that satisfies SCHEMA."""

    def said(count: int) -> str:
        return "".join(rng.choices(words, k=count)).strip()

    return json.dumps(
        {
            "name": said(3),
            "age": rng.randrange(100),
            "tags": rng.choices(["red", "green", "blue"], k=rng.randrange(4)),
            "home": {"street": said(4), "zip": f"{rng.randrange(100_000):05}"},
        }
    )


def tokens_of(text: str, ids: dict[bytes, int]) -> list[int]:
    """Cut by the longest token that fits, and ended."""
    data, tokens, at = text.encode(), [], 0
    while at < len(data):
        size = next(size for size in range(LONGEST, 0, -1) if data[at : at + size] in ids and at + size <= len(data))
        tokens.append(ids[data[at : at + size]])
        at += size
    return [*tokens, EOS]
