"""Which of FlashInfer's kernels take the lengths of rows from the device, when the host planned for longer rows?

A step may be planned before the host knows how many tokens the step before accepted. The host then plans for a bound,
and the device has the real lengths. Everything beyond a row's real length is large and finite here: a kernel that reads
it is off by far. Each answer is compared with attention in float32. Prints one JSON object as its last line: for each
kernel the worst error by `d`, the tokens by which the plan is longer than the rows.

python benchmark/kernels/late_lengths.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import flashinfer
import torch
from torch import Tensor

HEADS, KV_HEADS, DIM = 32, 8, 128
LENGTHS = (4, 5, 15, 16, 17, 31, 33, 64, 127, 129, 511, 512, 513, 1023, 1025, 4095, 4097, 30_000)
"""Real lengths of the rows, the step's own tokens included: around borders of pages and of pieces."""
STALE = 1e4
EXTRA = tuple(range(10))
"""Tokens whose number is not known yet: two steps of four drafts, and one token."""
FEW = ((30_001,), (8_192, 513), (2_048,), (4_096,))
"""Batches of so few rows that keys are split among blocks. Alone, a row of 2,048 tokens is 16 pieces on an H200, and a
longer one more, so a plan for a longer row has a piece that the row does not reach.
"""


class Cache:
    """Random pages, and what each row has of them."""

    def __init__(self, lengths: tuple[int, ...], page_size: int, most_extra: int) -> None:
        counts = [-(-(length + most_extra) // page_size) for length in lengths]
        order = (torch.randperm(sum(counts), device="cuda") + 1).int()
        self.rows = list(torch.split(order, counts))
        shape = (sum(counts) + 1, page_size, KV_HEADS, DIM)
        self.keys, self.values = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
        for pages, length in zip(self.rows, lengths, strict=True):
            for cache, stale in ((self.keys, 30.0), (self.values, STALE)):
                flat = cache[pages.long()].flatten(0, 1)
                flat[length:] = stale
                cache[pages.long()] = flat.view(-1, page_size, KV_HEADS, DIM)
        self.keys[0], self.values[0] = 30.0, STALE
        self.lengths, self.page_size = lengths, page_size

    def lists(self, extra: int) -> tuple[Tensor, Tensor, Tensor]:
        """indptr, indices and lengths of last pages for rows that are `extra` longer than they are, on the CPU."""
        longer = [length + extra for length in self.lengths]
        pages = [-(-length // self.page_size) for length in longer]
        starts = torch.tensor([0, *torch.tensor(pages).cumsum(0)], dtype=torch.int32)
        indices = torch.cat([row[:count] for row, count in zip(self.rows, pages, strict=True)])
        last = torch.tensor([(length - 1) % self.page_size + 1 for length in longer], dtype=torch.int32)
        return starts, indices, last

    def expected(self, q: Tensor, q_len: int) -> Tensor:
        """Attention of the last `q_len` tokens of each row in float32."""
        out = []
        for row, (pages, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            keys, values = (
                cache[pages.long()].flatten(0, 1)[:length].float().repeat_interleave(HEADS // KV_HEADS, dim=1)
                for cache in (self.keys, self.values)
            )
            scores = torch.einsum("qhd,khd->hqk", q[row * q_len : (row + 1) * q_len].float(), keys) * DIM**-0.5
            places = torch.arange(length, device="cuda")
            seen = places <= (length - q_len + torch.arange(q_len, device="cuda"))[:, None]
            out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values))
        return torch.cat(out)


def planned(kernel: str, cache: Cache, q_len: int, extra: int, workspace: Tensor) -> Any:
    """A wrapper that is planned for rows longer by `extra`, and whose device arrays have the real lengths."""
    starts, _, last = cache.lists(extra)
    # The plan expects this number of entries; those after the real lengths are the null page.
    indices = torch.zeros(int(starts[-1]), dtype=torch.int32, device="cuda")
    real_starts, real_indices, real_last = cache.lists(0)
    indices[: len(real_indices)] = real_indices
    heads = (HEADS, KV_HEADS, DIM, cache.page_size)
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    if kernel == "decode":
        wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(starts, indices, last, *heads, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=kernel)
        queries = torch.arange(len(cache.lengths) + 1, dtype=torch.int32) * q_len
        wrapper.plan(queries, starts, indices, last, *heads, causal=True, **types)
    wrapper._paged_kv_indptr_buf = real_starts.cuda()
    wrapper._paged_kv_last_page_len_buf = real_last.cuda()
    wrapper._paged_kv_indices_buf = indices
    return wrapper


def error(actual: Tensor, expected: Tensor) -> float:
    """Worst token, by the norm of the difference over the norm."""
    found = ((actual.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max()
    return float(found) if torch.isfinite(found) else float("inf")


def cases() -> Iterator[tuple[str, int, int, tuple[int, ...]]]:
    for (kernel, q_len), page_size, lengths in product(
        (("decode", 1), ("fa2", 1), ("fa2", 4), ("fa3", 1), ("fa3", 4)), (1, 16), (LENGTHS, *FEW)
    ):
        yield kernel, q_len, page_size, lengths


def main() -> None:
    torch.manual_seed(1)
    workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
    worst: dict[str, dict[int, float]] = {}
    for kernel, q_len, page_size, lengths in cases():
        cache = Cache(lengths, page_size, max(EXTRA))
        q = torch.randn(len(lengths) * q_len, HEADS, DIM, device="cuda").bfloat16()
        expected = cache.expected(q, q_len)
        errors = worst.setdefault(f"{kernel}, {q_len} tokens a row", dict.fromkeys(EXTRA, 0.0))
        for extra in EXTRA:
            wrapper = planned(kernel, cache, q_len, extra, workspace)
            out = torch.empty_like(q)
            for _ in range(2):  # a second run finds what the first one left in the workspace
                out.fill_(float("nan"))
                wrapper.run(q, (cache.keys, cache.values), out=out)
                errors[extra] = max(errors[extra], error(out, expected))
    for name, errors in worst.items():
        print(f"{name:24}", *(f"{value:9.2g}" for value in errors.values()), flush=True)
    print(json.dumps({name: {str(extra): value for extra, value in errors.items()} for name, errors in worst.items()}))


if __name__ == "__main__":
    main()
