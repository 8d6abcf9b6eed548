"""Many requests over shared prefixes, through the whole engine: reading shared pages once changes no answer."""

import random

from fixtures.warm_start import warm_engines
from mysglang import Engine

SYSTEMS = 3
REQUESTS = 18


def answers(**options: object) -> list[list[int]]:
    """Prompts with a common beginning, some of them with more in common; half of the answers are drawn."""
    rng = random.Random(4)
    beginnings = [[rng.randrange(3, 500) for _ in range(200)] for _ in range(SYSTEMS)]
    prompts = []
    for i in range(REQUESTS):
        common = beginnings[i % SYSTEMS]
        turn = [10 + i % 5] * 40 if i % 2 else []
        prompts.append([*common, *turn, *(rng.randrange(3, 500) for _ in range(i % 7 + 1))])
    sampling = [
        {"temperature": float(i % 2), "sampling_seed": i, "max_new_tokens": 12 + i % 9, "ignore_eos": True}
        for i in range(REQUESTS)
    ]
    # In float32, sums in another order differ too little to change what is drawn.
    with warm_engines(), Engine(dtype="float32", log_level="warning", **options) as engine:
        told = engine.generate(input_ids=prompts, sampling_params=sampling)
    return [answer["output_ids"] for answer in told]


def test_reading_together_is_like_reading_alone() -> None:
    together = answers()
    assert together == answers(disable_cascade_attention=True)
    assert together == answers(page_size=16, chunked_prefill_size=128, enable_mixed_chunk=True)
