"""Times every plan for a mixture of experts that is worth trying. Prints the fastest of each number of tokens, and as
its last line one JSON object.

The fastest go into the rules of `srt/kernels/cuda/experts_plans.py` by hand: where two are within the noise, the one
that its neighbours have. Each time is that of one of many launches in a captured graph on weights that are not in the
cache.

python benchmark/kernels/tune_experts.py [--models qwen3-30b-a3b] [--tokens 1 4 16 64 256 1024 4096]

Compiling takes most of the time, so --processes of them fill Triton's cache first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from mysglang.srt.kernels.cuda.experts_blocks import blocks_of
from mysglang.srt.kernels.cuda.experts_gemv import Gemv
from mysglang.srt.kernels.cuda.experts_plans import best_plan
from mysglang.srt.kernels.cuda.mixture import Mixture, Plan
from mysglang.srt.kernels.experts import topk_softmax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from bench_experts import LAYERS, SHAPES, Shape, drawn, layer_of

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
TURNS = 8
SHOWN = 4
FIRST = ((1, 256, 1), (1, 512, 1), (2, 512, 1), (4, 128, 1), (4, 256, 2), (2, 512, 2), (4, 256, 4), (2, 1024, 4))
"""Tiles of gate and up in `Gemv`, beside the default."""
SECOND = ((1, 128, 2), (1, 256, 4), (2, 64, 2), (2, 64, 4), (2, 128, 2), (2, 256, 4), (4, 64, 4), (4, 128, 4))
"""Tiles of down in `Gemv`, beside the default."""
Sizes = tuple[int, int, int, int, int]
SMALL: tuple[Sizes, ...] = ((16, 64, 256, 4, 3), (16, 64, 128, 4, 4), (16, 32, 256, 4, 4), (16, 128, 128, 4, 3))
MEDIUM: tuple[Sizes, ...] = ((32, 64, 256, 4, 3), (32, 64, 128, 4, 4), (64, 64, 128, 4, 4), (64, 128, 128, 8, 3))
LARGE: tuple[Sizes, ...] = ((64, 128, 128, 4, 3), (128, 64, 128, 8, 4), (128, 128, 128, 8, 3), (128, 128, 128, 8, 4))
"""Rows, outputs, bytes of depth, warps and stages, each with every way of `WAYS`."""
WAYS: tuple[dict[str, bool], ...] = ({}, {"across": True}, {"copied": True}, {"copied": True, "across": True})
HALVED_ROWS = 128
"""Rows of a tile from which on one of half as many rows is worth trying for half-empty blocks."""


def plans(shape: Shape, tokens: int) -> Iterator[Plan]:
    """Plans worth trying for so many tokens."""
    each = tokens * shape.top_k / shape.experts
    if tokens <= 4:
        yield Gemv()
    if tokens == 1:
        for outputs, inputs, warps in FIRST:
            yield replace(Gemv(), outputs=outputs, inputs=inputs, warps=warps)
        for outputs, inputs, warps in SECOND:
            yield replace(Gemv(), down_outputs=outputs, down_inputs=inputs, down_warps=warps)
    sizes = [*(SMALL if each <= 16 else ()), *(MEDIUM if 4 <= each <= 64 else ()), *(LARGE if each >= 32 else ())]
    for tile in sizes:
        for way in WAYS:
            yield blocks_of(*tile, sort=tokens > 16, **way)
            if tile[0] >= HALVED_ROWS:
                yield blocks_of(*tile, sort=tokens > 16, halved=True, **way)


def routed(shape: Shape, tokens: int, layer: tuple[torch.Tensor, torch.Tensor]) -> Mixture:
    ids, gates = topk_softmax(drawn(tokens, shape.experts), shape.top_k, True)
    return Mixture(drawn(tokens, shape.width), *layer, ids, gates, "silu", None)


def compile_share(share: int, shares: int, models: list[str], tokens: list[int]) -> None:
    """Compiles one of several shares of all plans into Triton's cache."""
    for model in models:
        shape = SHAPES[model]
        # Nothing is computed, so nothing needs to be written there.
        layer = (
            torch.empty(shape.experts, 2 * shape.inner, shape.width, device="cuda", dtype=torch.bfloat16),
            torch.empty(shape.experts, shape.width, shape.inner, device="cuda", dtype=torch.bfloat16),
        )
        for number in tokens:
            mixture = routed(shape, number, layer)
            for plan in list(dict.fromkeys(plans(shape, number)))[share::shares]:
                mixture.warm(plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["qwen3-30b-a3b"], choices=list(SHAPES))
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--processes", type=int, default=8, help="that compile, before anything is timed")
    parser.add_argument("--seconds", type=float, default=600, help="nothing is begun after so many")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        wanted = arguments.processes, arguments.models, arguments.tokens
        for done in [pool.submit(compile_share, share, *wanted) for share in range(arguments.processes)]:
            done.result()
    results = []
    for model in arguments.models:
        shape = SHAPES[model]
        layers = [layer_of(shape) for _ in range(LAYERS)]
        for tokens in arguments.tokens:
            if time.monotonic() - begin > arguments.seconds:
                break
            calls = [routed(shape, tokens, layers[i % len(layers)]) for i in range(TURNS)]
            times: list[tuple[float, str]] = []
            expected = calls[0].run(best_plan(calls[0])).float()
            for plan in plans(shape, tokens):
                found = calls[0].run(plan).float()
                assert float((found - expected).norm() / expected.norm()) < 1e-2, (tokens, plan)

                def launch(i: int, plan: Plan = plan, calls: list[Mixture] = calls) -> torch.Tensor:
                    return calls[i].run(plan)

                times.append((round(microseconds(launch, TURNS), 1), str(plan)))
            chosen = str(best_plan(calls[0]))
            times.sort()
            now = min((us for us, name in times if name == chosen), default=None)
            print(model, tokens, "chosen:", now, flush=True)
            for us, name in times[:SHOWN]:
                print("   ", us, name)
            results.append({"model": model, "tokens": tokens, "chosen_us": now, "times": times})
    print(json.dumps({"device": torch.cuda.get_device_name(), "plans": results}))


if __name__ == "__main__":
    main()
