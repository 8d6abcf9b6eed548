"""Cost of grammars on the host: following the answers of a step and writing their masks, and compiling.

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
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from made_up import EOS, SCHEMA, VOCAB_SIZE, document, ids_of, made_up_vocabulary, tokens_of, words_of

from mysglang.srt.constrained.answer_grammar import AnswerGrammar, AnswerMasks
from mysglang.srt.constrained.backend import GrammarBackend, JsonStyle
from mysglang.srt.constrained.factory import BACKENDS, make_backend
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec

STEPS = 100
COMPILES = 7

SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Microseconds."""
    tenths = statistics.quantiles([1e6 * value for value in seconds], n=10)
    return {"median": round(tenths[4], 1), "p10": round(tenths[0], 1), "p90": round(tenths[8], 1)}


def measure_steps(backend: GrammarBackend, vocabulary: Vocabulary, rows: int) -> dict[str, Any]:
    """Decode steps of `rows` answers. An answer that ends starts again."""
    rng = random.Random(rows)
    ids, words = ids_of(vocabulary), words_of(vocabulary)
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
