"""The six fixed offline workloads. Prompts are token ids, lengths are fixed, every engine gets the same."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One prompt and one output length for each request."""

    prompts: list[list[int]]
    output_lens: list[int]
    shared: int = 0
    """Tokens at the beginning of every prompt that are the same in all of them."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)


def workloads(vocab_size: int = 30000) -> dict[str, Workload]:
    """Name -> workload, drawn with seed 0 in this order."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(10, vocab_size) for _ in range(count)]

    made: dict[str, Workload] = {}
    made["latency_bs1_in128_out256"] = Workload([ids(128)], [256])
    made["decode_bs64_in1024_out128"] = Workload([ids(1024) for _ in range(64)], [128] * 64)
    made["decode_bs256_in1024_out128"] = Workload([ids(1024) for _ in range(256)], [128] * 256)
    made["prefill_32x4096"] = Workload([ids(4096) for _ in range(32)], [1] * 32)
    mixed = [ids(rng.randint(100, 1024)) for _ in range(256)]
    made["offline_256_mixed"] = Workload(mixed, [rng.randint(100, 1024) for _ in range(256)])
    shared = ids(2048)
    made["shared_prefix_256x(2048+128)_out64"] = Workload([shared + ids(128) for _ in range(256)], [64] * 256, 2048)
    return made
