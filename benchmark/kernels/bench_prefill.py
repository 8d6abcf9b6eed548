"""Times the work of a prefill step other than its matrix products. Prints one JSON object as its last line.

rope_and_store    against the time in which its bytes can be copied
attention         of new rows over the step's own keys, over pages of one token, and over pages of 16
continued         attention of rows with a cached prefix

Each time is that of one of many launches in a captured graph, with inputs that take turns.

python benchmark/kernels/bench_prefill.py [--models llama-8b qwen3-0.6b]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.rotary import rope_and_store
from mysglang.srt.layers.attention.flashinfer_attend import PageLists, PrefillMetadata
from mysglang.srt.layers.attention.flashinfer_prefill import PrefillKind
from mysglang.srt.layers.attention.prefill_runs import Run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from ceilings import measure
from shapes import SHAPES

TOKENS = (1, 64, 256, 2048, 8192)
NEW = ((1, 128), (2, 512), (8, 1024), (1, 4096), (2, 4096), (1, 8192))
"""(rows, new tokens of each)."""
CONTINUED = ((1, 4096, 4096), (64, 128, 2048))
"""(rows, new tokens of each, tokens before them)."""
TURNS = 4
CACHE_SLOTS = 300_000


class Shapes:
    """A model's attention, with random inputs."""

    def __init__(self, model: str) -> None:
        shape = SHAPES[model]
        heads, kv_heads, dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        self.spec = AttentionSpec(
            layer_id=0, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, scale=float(dim) ** -0.5
        )
        self.norms = model.startswith("qwen3")
        self.sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
        self.caches = [bf16(CACHE_SLOTS, kv_heads, dim) for _ in "kv"]

    def projections(self, tokens: int) -> list[tuple[Tensor, ...]]:
        """q, k and v as slices of one projection, several times."""
        return [bf16(tokens, sum(self.sizes)).split(self.sizes, dim=-1) for _ in range(TURNS)]


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def bench_rope(shapes: Shapes, tokens: int, copy_tb_s: float) -> dict[str, Any]:
    dim, projections = shapes.spec.head_dim, shapes.projections(tokens)
    positions, table = torch.arange(tokens, device="cuda"), torch.randn(tokens, dim, device="cuda")
    locations = torch.randperm(CACHE_SLOTS, device="cuda")[:tokens]
    norms = (bf16(dim), bf16(dim), 1e-6) if shapes.norms else None
    q, k, v = (2 * tokens * size for size in shapes.sizes)
    # Queries and keys are read and written, keys and values written to the cache as well.
    floor = (2 * q + 3 * k + 2 * v) / copy_tb_s / 1e6
    us = microseconds(
        lambda i: rope_and_store(*projections[i], positions, table, norms, *shapes.caches, locations), TURNS
    )
    return {"tokens": tokens, "us": round(us, 2), "floor_us": round(floor, 2)}


def bench_attention(shapes: Shapes, rows: int, new: int, before: int, page_size: int, *, own: bool) -> float:
    """Microseconds of one layer."""
    tokens, length = rows * new, new + before
    projections = [tuple(x.view(tokens, -1, shapes.spec.head_dim) for x in qkv) for qkv in shapes.projections(tokens)]
    pages_a_row = -(-length // page_size)
    starts = np.arange(rows + 1, dtype=np.int32) * pages_a_row
    indices = torch.randperm(CACHE_SLOTS // page_size, device="cuda")[: rows * pages_a_row].to(torch.int32)
    last = torch.full((rows,), length - (pages_a_row - 1) * page_size, dtype=torch.int32, device="cuda")
    metadata = PrefillMetadata(
        (Run(slice(0, rows), slice(0, tokens), own),),
        None if own else PageLists(torch.from_numpy(starts).cuda(), indices, last),
        np.full(rows, length, dtype=np.int32),
        np.full(rows, new, dtype=np.int32),
    )
    used = CACHE_SLOTS // page_size * page_size
    pages: Any = tuple(x[:used].view(-1, page_size, *x.shape[1:]) for x in shapes.caches)
    (attend,) = PrefillKind(shapes.spec, torch.bfloat16, page_size, WORKSPACE).plan(metadata)
    out = torch.empty_like(projections[0][0], memory_format=torch.contiguous_format)

    def launch(i: int) -> None:
        q, k, v = projections[i]
        attend.run(q, k, v, pages, out)

    return microseconds(launch, TURNS)


def tflops(shapes: Shapes, rows: int, new: int, before: int, us: float) -> float:
    """Operations per second, counted for the scores that are not masked."""
    flops = 4 * shapes.spec.num_heads * shapes.spec.head_dim * rows * (new * before + new * new / 2)
    return round(flops / us / 1e6, 0)


def table_of(name: str, cases: Any, bench: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    results = []
    for case in cases:
        result = bench(*case)
        print(name, *(f"{key} {value}" for key, value in result.items()), flush=True)
        results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-8b", "qwen3-0.6b"], choices=list(SHAPES))
    ceilings = measure()
    results: dict[str, Any] = {"ceilings": ceilings}
    for model in parser.parse_args().models:
        shapes = Shapes(model)

        def rope(tokens: int, shapes: Shapes = shapes) -> dict[str, Any]:
            return bench_rope(shapes, tokens, float(str(ceilings["copy_tb_s"])))

        def attention(rows: int, new: int, before: int = 0, shapes: Shapes = shapes) -> dict[str, Any]:
            ways = {"own": (1, True)} if not before else {}
            ways |= {"pages of 1": (1, False), "pages of 16": (16, False)}
            times = {
                name: bench_attention(shapes, rows, new, before, page_size, own=own)
                for name, (page_size, own) in ways.items()
            }
            best = tflops(shapes, rows, new, before, min(times.values()))
            return {"rows": f"{rows}x{new}+{before}", **{k: round(v, 1) for k, v in times.items()}, "tflops": best}

        results[model] = {
            "rope_and_store": table_of(f"{model} rope_and_store", [(n,) for n in TOKENS], rope),
            "attention": table_of(f"{model} attention", [*NEW, *CONTINUED], attention),
        }
    print(json.dumps(results))


WORKSPACE = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")

if __name__ == "__main__":
    main()
