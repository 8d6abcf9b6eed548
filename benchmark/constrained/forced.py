"""Share of an answer that its grammar forces, so that it could be emitted without asking the model (jump-forward).

    python benchmark/constrained/forced.py

Follows made-up documents of one schema token by token, with xgrammar. Where the grammar leaves one continuation, its
text is cut into tokens by itself; all but the last of these, whose border what follows may move, could be appended at
once and computed together, in the step of the first. Some 10 seconds; prints one JSON object last.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from made_up import SCHEMA, VOCAB_SIZE, document, ids_of, made_up_vocabulary, tokens_of, words_of

from mysglang.srt.constrained.backend import JsonStyle
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.constrained.xgrammar_backend import XGrammarBackend, XGrammarMatcher
from mysglang.srt.forward.worker_batch import mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec

DOCUMENTS = 50
SPEC = GrammarSpec("json_schema", json.dumps(SCHEMA))


def measure(vocabulary: Vocabulary, style: JsonStyle) -> dict[str, Any]:
    """Shares of all tokens: those where only one was allowed, those in forced text, and those that need no step of
    their own.
    """
    ids, words, rng = ids_of(vocabulary), words_of(vocabulary), random.Random(1)
    backend = XGrammarBackend(vocabulary, style)
    grammar = backend.load(SPEC, backend.compile(SPEC))
    bits = np.zeros((1, mask_words(VOCAB_SIZE)), dtype=np.int32)
    tokens = alone = forced = saved = 0
    for _ in range(DOCUMENTS):
        matcher = grammar.matcher()
        assert isinstance(matcher, XGrammarMatcher)
        ahead = 0
        for token in tokens_of(document(rng, words), ids):
            backend.fill([matcher], bits, [0])
            alone += int(np.unpackbits(bits.view(np.uint8)).sum()) == 1
            tokens += 1
            if ahead:
                ahead -= 1
                saved += 1
            elif text := matcher.handle.find_jump_forward_string():
                pieces = len(tokens_of(text, ids)) - 1  # without the end
                forced += pieces
                ahead = max(0, pieces - 1)
            assert matcher.accept(token)
    share = {"only_one_allowed": alone, "in_forced_text": forced, "steps_saved": saved}
    return {"any_whitespace": style.any_whitespace, **{name: round(count / tokens, 3) for name, count in share.items()}}


def main() -> int:
    vocabulary = made_up_vocabulary()
    found = [measure(vocabulary, JsonStyle(any_whitespace=freely)) for freely in (True, False)]
    for one in found:
        print(json.dumps(one))
    print(json.dumps({"what": "shares of the tokens of documents of one schema", "styles": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
