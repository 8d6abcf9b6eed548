"""Times attention of decode steps over latent rows beside its floor and beside the Triton kernel. Prints one JSON
object as its last line.

A time is that of one launch in a captured chain over caches that take turns, so that rows do not stay in the second
level of cache. The floor is the time in which the rows can be read, those that several requests share once.

python benchmark/kernels/bench_latent.py [--heads 16 128]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mysgl_kernel.latent_attention import SIZES, planned_latent_decode
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.cuda.latent_attention import latent_decode_attention
from mysglang.srt.layers.attention.decode_plan import DecodePlanner
from mysglang.srt.layers.attention.planned_kinds import kind_of, num_blocks

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import microseconds
from bench_attention import TURN_BYTES, Case, bf16, planned
from ceilings import measure

CASES = (1, 1024, 0), (8, 1024, 0), (64, 1024, 0), (256, 1024, 0), (64, 8192, 0), (256, 160, 2048)
"""(requests, rows of each request alone, rows that all share before)."""


def bench(heads: int, requests: int, own: int, shared: int, read_tb_s: float) -> dict[str, Any]:
    size, value = SIZES
    spec = AttentionSpec(layer_id=0, num_heads=heads, num_kv_heads=1, head_dim=size, scale=192**-0.5, latent_dim=value)
    case = Case(heads, 1, size, np.full(requests, own + shared, dtype=np.int32), shared)
    table = torch.from_numpy(case.table()).cuda()
    turns = max(2, min(8, int(TURN_BYTES // (case.keys * size * 2)) + 1))
    caches = [bf16(case.keys + 1, 1, size) for _ in range(turns)]
    q = bf16(requests, heads * size)
    lens, slots = torch.from_numpy(case.seq_lens).cuda(), torch.arange(requests, device="cuda")

    def triton(i: int) -> Tensor:
        return latent_decode_attention(q, caches[i], table, slots, lens, 1, spec)

    plan = planned(case, DecodePlanner(kind_of(spec, num_blocks(q.device)), len(q)))

    def ours(i: int) -> Tensor:
        return planned_latent_decode(q, caches[i], table, plan, 1, spec.scale, True)

    floor = case.keys * size * 2 / read_tb_s / 1e6
    error = (ours(0).float() - triton(0).float()).norm() / triton(0).float().norm()
    us, before = microseconds(ours, turns), microseconds(triton, turns)
    return {"floor_us": round(floor, 1), "us": round(us, 1), "triton_us": round(before, 1), "error": f"{error:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 128])
    args = parser.parse_args()
    read = float(str(measure()["read_tb_s"]))
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "read_tb_s": read}
    for heads in args.heads:
        for requests, own, shared in CASES:
            name = f"{heads} heads, {requests} x {own}" + (f" after {shared}" if shared else "")
            results[name] = bench(heads, requests, own, shared, read)
            print(f"{name:36} {results[name]}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
