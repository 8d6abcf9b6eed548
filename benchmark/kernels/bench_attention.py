"""Times decode attention beside its floor and beside FlashInfer. Prints one JSON object as its last line.

A time is what attention adds to a chain of captured launches: a plain kernel, the one that stores keys and values, then
attention, as in a layer. Caches that take turns keep keys out of the second level of cache. The floor is the time in
which keys and values can be read, those that rows share once.

python benchmark/kernels/bench_attention.py [--models llama-8b qwen3-0.6b] [--quick]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mysgl_kernel.attention import planned_decode
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.kernels.attention import DecodePlan
from mysglang.srt.kernels.kvcache import store_kv
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from ceilings import measure
from shapes import SHAPES

QUICK = ((8, 1024, 0), (64, 1024, 0), (256, 1024, 0), (256, 160, 2048))
CASES = ((1, 1024, 0), (1, 8192, 0), (2, 1024, 0), (4, 1024, 0), (16, 1024, 0), (64, 8192, 0), (256, 128, 0))
SHARED = ((16, 160, 2048), (64, 160, 2048))
"""(rows, keys of each row alone, keys that all share before)."""
TURN_BYTES = 300e6


@dataclass(frozen=True)
class Case:
    """Rows over caches of random keys; a row's tokens are neighbours in the cache, as they mostly are."""

    heads: int
    kv_heads: int
    dim: int
    seq_lens: Ints
    shared: int

    @property
    def own(self) -> int:
        return int(self.seq_lens.max()) - self.shared

    @property
    def keys(self) -> int:
        """Number of keys that must be read."""
        return int(self.seq_lens.sum()) - (len(self.seq_lens) - 1) * self.shared

    def caches(self) -> list[tuple[Tensor, Tensor]]:
        slots = len(self.seq_lens) * self.own + self.shared + 1
        turns = max(2, min(8, int(TURN_BYTES // (slots * self.kv_heads * self.dim * 4)) + 1))
        return [(bf16(slots, self.kv_heads, self.dim), bf16(slots, self.kv_heads, self.dim)) for _ in range(turns)]

    def table(self) -> Ints:
        rows, ids = len(self.seq_lens), np.arange(1, len(self.seq_lens) * self.own + self.shared + 1, dtype=np.int32)
        prefix = np.broadcast_to(ids[: self.shared], (rows, self.shared))
        return np.concatenate((prefix, ids[self.shared :].reshape(rows, self.own)), axis=1)

    def prefixes(self) -> SharedPrefixes | None:
        rows = np.arange(len(self.seq_lens), dtype=np.int32)
        return shared_by(rows, self.shared) if self.shared else None


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def shared_by(rows: Ints, tokens: int) -> SharedPrefixes:
    starts, ends, indptr = (np.array(values, dtype=np.int32) for values in ([0], [tokens], [0, len(rows)]))
    return SharedPrefixes(starts, ends, indptr, rows)


def ours(case: Case, q: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Callable[[int], object]:
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    planner = DecodePlanner(DecodeShape(case.heads, case.kv_heads, case.dim, None, blocks), len(q))
    plan = planned(case, planner)
    table = torch.from_numpy(case.table()).cuda()

    def launch(i: int) -> Tensor:
        return planned_decode(q, *caches[i], table, plan, 1, float(case.dim) ** -0.5, 0.0, True)

    return launch


def planned(case: Case, planner: DecodePlanner) -> DecodePlan:
    """Returns the plan of the case on the device, with room for its partial results."""
    shape, columns = planner.shape, planner.columns()
    planner.fill(np.arange(len(case.seq_lens), dtype=np.int32), case.seq_lens, case.prefixes(), columns)
    return DecodePlan(
        **{name: torch.from_numpy(array).cuda() for name, array in columns.items()},
        partial=torch.empty(planner.max_parts, shape.num_heads, shape.value_dim, device="cuda"),
        partial_lse=torch.empty(planner.max_parts, shape.num_heads, device="cuda"),
    )


def flashinfers(case: Case, q: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Callable[[int], object]:
    import flashinfer

    indptr = np.zeros(len(q) + 1, dtype=np.int32)
    np.cumsum(case.seq_lens, out=indptr[1:])
    table = torch.from_numpy(case.table()).cuda()
    indices = torch.cat([row[:length] for row, length in zip(table, case.seq_lens.tolist(), strict=True)])
    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    ones = torch.ones(len(q), dtype=torch.int32)
    heads = (case.heads, case.kv_heads, case.dim, 1)
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    wrapper.plan(torch.from_numpy(indptr), indices, ones, *heads, **types)
    queries = q.view(len(q), case.heads, case.dim)
    pages = [tuple(x.unsqueeze(1) for x in cache) for cache in caches]
    out = torch.empty_like(queries)
    return lambda i: wrapper.run(queries, pages[i], out=out)


def added(case: Case, caches: list[tuple[Tensor, Tensor]], attend: Callable[[int], object]) -> float:
    """Microseconds that attention adds to what comes before it in a layer."""
    rows = len(case.seq_lens)
    k, x, slots = bf16(rows, case.kv_heads * case.dim), bf16(4 << 20), torch.arange(rows, device="cuda")
    y = torch.empty_like(x)

    def before(i: int) -> None:
        torch.mul(x, 2.0, out=y)
        store_kv(k, k, *caches[i], slots)

    def layer(i: int) -> None:
        before(i)
        attend(i)

    return microseconds(layer, len(caches)) - microseconds(before, len(caches))


def bench(case: Case, read_tb_s: float) -> dict[str, Any]:
    caches, q = case.caches(), bf16(len(case.seq_lens), case.heads * case.dim)
    floor = case.keys * case.kv_heads * case.dim * 4 / read_tb_s / 1e6
    us = added(case, caches, ours(case, q, caches))
    result = {"floor_us": round(floor, 1), "us": round(us, 1), "of_floor": round(floor / us, 2)}
    if importlib.util.find_spec("flashinfer") is not None:
        other = added(case, caches, flashinfers(case, q, caches))
        result |= {"flashinfer_us": round(other, 1), "flashinfer_of_floor": round(floor / other, 2)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-8b", "qwen3-0.6b"], choices=list(SHAPES))
    parser.add_argument("--quick", action="store_true", help="four cases for each model")
    args = parser.parse_args()
    ceilings = measure()
    results: dict[str, Any] = {"ceilings": ceilings}
    for model in args.models:
        shape = SHAPES[model]
        sizes = (shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"])
        for rows, own, shared in QUICK if args.quick else (*CASES, *QUICK, *SHARED):
            case = Case(*sizes, np.full(rows, own + shared, dtype=np.int32), shared)
            name = f"{model} {rows} x {own}" + (f" after {shared} shared" if shared else "")
            results[name] = bench(case, float(str(ceilings["read_tb_s"])))
            print(name, *(f"{key} {value}" for key, value in results[name].items()), flush=True)
            torch.cuda.empty_cache()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
