"""Time of attention over keys and values that are made of latent rows, beside attention over the rows themselves.

    python benchmark/kernels/bench_expanded.py [--heads 16] [--tiles 128,64,8,3 128,64,8,2]

One layer at the sizes of DeepSeek-V2 and V3, random data. Prints microseconds of each kernel of the expanded way, the
sum, TFLOP/s of the attention that is needed, and the time of the other way.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.cuda import expanded_attention, latent_attention
from mysglang.srt.layers.attention.packed_rows import Columns, layers_of, pieces_of

LATENT, TURNED, KEY, VALUE = 512, 64, 128, 128
SCALE = (KEY + TURNED) ** -0.5
STEPS = {
    "2 x 4096": [(4096, 4096)] * 2,
    "8 x 1024": [(1024, 1024)] * 8,
    "1 x 8192": [(8192, 8192)],
    "64 x 128 after 2048": [(128, 2176)] * 64,
    "1 x 1024 after 15 k": [(1024, 16384)],
    "32 x 32 after 1024": [(32, 1056)] * 32,
}
"""New tokens and length of each row."""


def microseconds(run: Callable[[], object], rounds: int = 7) -> float:
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(3):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 3 * 1e3)
    return statistics.median(times)


class Layer:
    """One step in one layer."""

    def __init__(self, heads: int, rows: list[tuple[int, int]]) -> None:
        bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
        self.heads = heads
        self.new, self.lengths = (np.array(each, dtype=np.int32) for each in zip(*rows, strict=True))
        self.total, self.tokens, self.longest = int(self.lengths.sum()), int(self.new.sum()), int(self.lengths.max())
        self.cache = torch.randn(self.total + 1, 1, LATENT + TURNED, **bf16)
        self.table = torch.zeros(len(rows), self.longest, dtype=torch.int32, device="cuda")
        pages = torch.randperm(self.total, device="cuda", dtype=torch.int32) + 1
        for row, own in enumerate(pages.split(self.lengths.tolist())):
            self.table[row, : len(own)] = own
        self.firsts = np.concatenate(([0], self.new.cumsum()[:-1])).astype(np.int32)
        slots = np.arange(len(rows))
        columns = Columns(slots, self.firsts, self.new, self.lengths)
        (lines,) = pieces_of(columns, layers_of(columns, None, slots), self.total)
        self.parts = lines.parts
        self.piece = torch.from_numpy(self.parts).cuda()
        self.q = torch.randn(self.tokens, heads, KEY + TURNED, **bf16)
        self.up = [torch.randn(heads, LATENT, size, **bf16) * LATENT**-0.5 for size in (KEY, VALUE)]
        self.latent = self.gather()
        self.keys, self.values = self.make()
        self.out = torch.empty(self.tokens, heads, VALUE, **bf16)
        self.lse = torch.empty(self.tokens, heads, dtype=torch.float32, device="cuda")
        self.absorbed = torch.randn(self.tokens, heads * (LATENT + TURNED), **bf16)

    def gather(self) -> Tensor:
        return expanded_attention.gather_rows(self.cache, self.table, self.piece, self.total, self.longest, 1)

    def make(self) -> list[Tensor]:
        wide = self.latent[:, :LATENT].expand(self.heads, -1, -1)
        return [torch.bmm(wide, up) for up in self.up]

    def attend(self) -> None:
        turned, most = self.latent[:, LATENT:], int(self.new.max())
        expanded_attention.attend_to_heads(
            self.q, self.keys, self.values, turned, self.piece, most, SCALE, self.out, self.lse, self.lse
        )

    def with_tile(self, tile: str) -> float:
        names = ("QUERIES", "KEYS", "num_warps", "num_stages")
        chosen = dict(zip(names, map(int, tile.split(",")), strict=True))
        with patch.object(expanded_attention, "tile_of", lambda _: chosen):
            return microseconds(self.attend)

    def over_rows(self) -> None:
        spec = AttentionSpec(
            layer_id=0, num_heads=self.heads, num_kv_heads=1, head_dim=LATENT + TURNED, scale=SCALE, latent_dim=LATENT
        )
        arrays = (self.lengths, self.new, self.firsts.astype(np.int64))
        lengths = [torch.from_numpy(array).cuda() for array in arrays]
        slots = torch.arange(len(self.new), device="cuda")
        latent_attention.latent_extend_attention(
            self.absorbed, self.cache, self.table, slots, *lengths, int(self.new.max()), 1, spec
        )

    @property
    def needed(self) -> float:
        """Floating-point operations of the attention."""
        new, before = self.new.astype(np.int64), (self.lengths - self.new).astype(np.int64)
        seen = float((new * before + new * (new + 1) // 2).sum())
        return seen * self.heads * 2 * (KEY + TURNED + VALUE)

    def error(self) -> float:
        """Relative error of the last queries of the first row, by norm, against float32."""
        new, count = int(self.new[0]), int(self.lengths[0])
        last = slice(max(0, new - 64), new)
        turned = self.latent[:count, LATENT:].float().expand(self.heads, -1, -1)
        whole = torch.cat((self.keys[:, :count].float(), turned), dim=-1)
        scores = self.q[last].transpose(0, 1).float() @ whole.mT * SCALE
        seen_by = count - new + torch.arange(last.start, new, device="cuda")
        behind = torch.arange(count, device="cuda") > seen_by[:, None]
        expected = scores.masked_fill(behind, float("-inf")).softmax(-1) @ self.values[:, :count].float()
        return float((self.out[last].float() - expected.transpose(0, 1)).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tiles", nargs="+", default=["128,64,8,3"], help="queries, keys, warps, stages")
    args = parser.parse_args()
    for name, rows in STEPS.items():
        layer = Layer(args.heads, rows)
        gather, make = microseconds(layer.gather), microseconds(layer.make)
        print(f"{name}: gather {gather:.1f}, make {make:.1f}", flush=True)
        for tile in args.tiles:
            attend = layer.with_tile(tile)
            rate, whole = layer.needed / attend / 1e6, gather + make + attend
            print(f"    {tile:12s} attend {attend:8.1f} ({rate:.0f} TFLOP/s), in all {whole:8.1f}", flush=True)
        rows_us = microseconds(layer.over_rows, 3)
        print(f"    error {layer.error():.1e}; over the rows themselves {rows_us:.1f}", flush=True)


if __name__ == "__main__":
    main()
