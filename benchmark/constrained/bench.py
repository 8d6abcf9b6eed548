"""What grammars cost on the host: following the answers of a step and writing their masks, and compiling.

    python benchmark/constrained/bench.py [--backends xgrammar llguidance outlines] [--rows 1 64 256]

The vocabulary is made up: 128,256 word-like tokens, as many as Llama 3 has. The answers are JSON documents that satisfy
the schema, cut into tokens, and each row is at another place of another document. Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import GrammarBackend, JsonStyle
from mysglang.srt.constrained.factory import BACKENDS, make_backend
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec

VOCAB_SIZE = 128_256
SPECIAL = 256
EOS = VOCAB_SIZE - 1
STEPS = 100
COMPILES = 7
LONGEST = 12

SCHEMA = {
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
SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


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


def document(rng: random.Random, words: list[str]) -> str:
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


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Microseconds."""
    tenths = statistics.quantiles([1e6 * value for value in seconds], n=10)
    return {"median": round(tenths[4], 1), "p10": round(tenths[0], 1), "p90": round(tenths[8], 1)}


def measure_steps(backend: GrammarBackend, vocabulary: Vocabulary, rows: int) -> dict[str, Any]:
    """Decode steps of `rows` answers, each of which starts anew when it ended."""
    rng = random.Random(rows)
    ids = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}
    words = [piece.decode() for piece in vocabulary.pieces if piece[:1] == b" " and piece[1:].isalpha()][:5000]
    grammar = backend.load(SPEC, backend.compile(SPEC))
    masks = AnswerMasks(lambda: backend, VOCAB_SIZE, (EOS,))
    bits = np.zeros((rows, mask_words(VOCAB_SIZE)), dtype=np.int32)
    answers = [(AnswerGrammar(grammar.matcher()), tokens_of(document(rng, words), ids)) for _ in range(rows)]
    for answer, tokens in answers:
        for _ in range(rng.randrange(len(tokens) - 1)):
            assert answer.accept(tokens.pop(0))
    filling, accepting = [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        masks.fill([answer for answer, _ in answers], bits)
        filled = time.perf_counter()
        for answer, tokens in answers:
            assert answer.accept(tokens.pop(0)), "a valid document was refused"
        accepting.append(time.perf_counter() - filled)
        filling.append(filled - began)
        for row, (answer, _) in enumerate(answers):
            if answer.finished:
                answers[row] = AnswerGrammar(grammar.matcher()), tokens_of(document(rng, words), ids)
    together = [a + b for a, b in zip(filling, accepting, strict=True)]
    return {"rows": rows, "mask": quantiles(filling), "accept": quantiles(accepting), "step": quantiles(together)}


def median_ms(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(COMPILES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(seconds), 2)


def measure(name: str, vocabulary: Vocabulary, rows: list[int]) -> dict[str, Any]:
    began = time.perf_counter()
    backend = make_backend(name, vocabulary, JsonStyle())
    made = time.perf_counter() - began
    data = backend.compile(SPEC)
    steps = [measure_steps(backend, vocabulary, count) for count in rows]
    for step in steps:
        mask, accept = step["mask"]["median"], step["accept"]["median"]
        print(f"{name:11} {step['rows']:4} rows: mask {mask:8} us, accept {accept:7} us")
    return {
        "backend": name,
        "make_backend_ms": round(1e3 * made, 1),
        "compile_ms": median_ms(lambda: backend.compile(SPEC)),
        "load_ms": median_ms(lambda: backend.load(SPEC, data)),
        "handed_over_bytes": len(data),
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    there = [name for name, (package, _) in BACKENDS.items() if find_spec(package) is not None]
    parser.add_argument("--backends", nargs="+", default=there, choices=list(BACKENDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 64, 256])
    args = parser.parse_args()
    vocabulary = made_up_vocabulary()
    found = [measure(name, vocabulary, args.rows) for name in args.backends]
    facts = {"bench": "constrained", "unit": "us", "vocab_size": VOCAB_SIZE, "python": sys.version.split()[0]}
    print(json.dumps({**facts, "backends": found}))


if __name__ == "__main__":
    main()
