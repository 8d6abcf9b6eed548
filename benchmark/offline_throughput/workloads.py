"""Fixed offline workloads. Prompts are token ids, lengths are fixed, every engine gets the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Workload:
    """One prompt and one output length for each request, and the sampling options of all of them."""

    prompts: list[list[int]]
    output_lens: list[int]
    shared: int = 0
    """Tokens at the beginning of every prompt that are the same in all of them."""
    sampling: Mapping[str, float] = field(default_factory=lambda: {"temperature": 0.0})
    """Options by the names that all engines share. The default is greedy decoding."""
    top_logprobs: int | None = None
    """Log-probabilities to report for each token, or None for none."""
    has_floor: bool = True
    """False if `floors.py` cannot say how little these prompts need, because they share more than one beginning."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)


class Draw:
    """Token ids and lengths, drawn with one seed in the order of the calls."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size

    def ids(self, count: int) -> list[int]:
        return [self._rng.randrange(10, self._vocab_size) for _ in range(count)]

    def length(self, least: int, most: int) -> int:
        return self._rng.randint(least, most)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [self.ids(length) for _ in range(count)]


def workloads(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns the six, by their names: drawn with seed 0 in this order."""
    draw = Draw(0, vocab_size)
    made: dict[str, Workload] = {}
    made["latency_bs1_in128_out256"] = Workload([draw.ids(128)], [256])
    made["decode_bs64_in1024_out128"] = Workload(draw.prompts(64, 1024), [128] * 64)
    made["decode_bs256_in1024_out128"] = Workload(draw.prompts(256, 1024), [128] * 256)
    made["prefill_32x4096"] = Workload(draw.prompts(32, 4096), [1] * 32)
    mixed = [draw.ids(draw.length(100, 1024)) for _ in range(256)]
    made["offline_256_mixed"] = Workload(mixed, [draw.length(100, 1024) for _ in range(256)])
    shared = draw.ids(2048)
    made["shared_prefix_256x(2048+128)_out64"] = Workload(
        [shared + draw.ids(128) for _ in range(256)], [64] * 256, 2048
    )
    return made


def drawn(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns the six with drawn tokens instead of greedy ones, for models with experts.

    Greedy answers of random weights repeat themselves, and rows come to have the same tokens. These choose the same
    experts, so that a step reads fewer of them than one of different texts.
    """
    sampling = {"temperature": 1.0}
    return {f"{name}_drawn": replace(work, sampling=sampling) for name, work in workloads(vocab_size).items()}


def sampled(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns one request, and 64, with sampling options beside greedy decoding of the same prompts."""
    draw = Draw(1, vocab_size)
    mixes: dict[str, tuple[dict[str, float], int | None]] = {
        "greedy": ({"temperature": 0.0}, None),
        "top_p": ({"temperature": 0.8, "top_p": 0.95}, None),
        "top_k_top_p": ({"temperature": 0.8, "top_p": 0.95, "top_k": 50}, None),
        "penalties": ({"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.5}, None),
        "logprobs": ({"temperature": 0.0}, 5),
    }
    made: dict[str, Workload] = {}
    for rows, length in ((1, 128), (64, 512)):
        prompts = draw.prompts(rows, length)
        for name, (options, top_logprobs) in mixes.items():
            made[f"bs{rows}_{name}"] = Workload(prompts, [128] * rows, sampling=options, top_logprobs=top_logprobs)
    return made


def long_prompts(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns long prompts, which need `--context 32768`."""
    draw = Draw(2, vocab_size)
    return {
        "long_6x30000_out64": Workload(draw.prompts(6, 30_000), [64] * 6),
        "long_6x30000_out1": Workload(draw.prompts(6, 30_000), [1] * 6),
        "prefill_24x5000": Workload(draw.prompts(24, 5000), [1] * 24),
    }


def shapes_between(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns batch sizes that the six leave out, and a tree of shared prefixes: 4 of 1024 tokens, behind each 8 of
    512, and behind each of those 8 prompts of 128.
    """
    draw = Draw(3, vocab_size)
    made = {
        "decode_bs8_in1024_out128": Workload(draw.prompts(8, 1024), [128] * 8),
        "decode_bs200_in700_out128": Workload(draw.prompts(200, 700), [128] * 200),
    }
    leaves: list[list[int]] = []
    for _ in range(4):
        trunk = draw.ids(1024)
        for _ in range(8):
            branch = trunk + draw.ids(512)
            leaves += [branch + draw.ids(128) for _ in range(8)]
    made["tree_4x8x8_out64"] = Workload(leaves, [64] * len(leaves), has_floor=False)
    return made


def first_tokens(vocab_size: int = 30000) -> dict[str, Workload]:
    """Returns single prompts of which only the first token is asked for: TTFT without HTTP and without a queue."""
    draw = Draw(4, vocab_size)
    return {f"first_in{n}": Workload([draw.ids(n)], [1]) for n in (64, 256, 512, 1024, 2048, 3072)}


SETS: dict[str, Callable[[], dict[str, Workload]]] = {
    "six": workloads,
    "drawn": drawn,
    "sampled": sampled,
    "long": long_prompts,
    "between": shapes_between,
    "first": first_tokens,
}
"""Name -> workloads by their names."""


def chosen(sets: list[str], parts: list[str]) -> dict[str, Workload]:
    """Returns the workloads of these sets whose name contains one of `parts`; all of them if `parts` is empty."""
    return {
        name: work
        for each in sets
        for name, work in SETS[each]().items()
        if not parts or any(part in name for part in parts)
    }
