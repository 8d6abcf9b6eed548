"""Rows of logits with every mix of sampling options, and the truth about them in float64."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from mysgl_kernel.sampling import BIAS, ROW, RowLogprobs

SLOTS = 300
TOP = 5


def mix(x: int) -> int:
    word = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & word
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
    return x ^ (x >> 31)


def uniform(seed: int, length: int) -> float:
    return (mix(mix(seed & ((1 << 64) - 1)) ^ length) >> 11) * 2.0**-53


class Case:
    """Rows of logits with every mix of options."""

    def __init__(self, seed: int, rows: int, vocab: int, *, ties: bool = False, spread: float = 3.0) -> None:
        g, r = torch.Generator().manual_seed(seed), random.Random(seed)
        self.logits = torch.randn(rows, vocab, generator=g) * spread
        if ties:
            self.logits = self.logits.round()
        self.rows = np.zeros(rows, dtype=ROW)
        self.bias: list[tuple[int, float]] = []
        self.counts = torch.randint(0, 6, (rows, vocab), generator=g, dtype=torch.int32)
        self.counts *= torch.rand(rows, vocab, generator=g) < 0.3
        self.counts_before = self.counts.clone()
        for index, row in enumerate(self.rows):
            row["seed"] = r.randrange(-(1 << 63), 1 << 63)
            row["temperature"] = r.choice([1.0, 0.3, 0.8, 1.7])
            row["top_p"] = r.choice([1.0, 1.0, 0.1, 0.5, 0.95, 0.999])
            row["min_p"] = r.choice([0.0, 0.0, 0.02, 0.3])
            row["top_k"] = r.choice([1 << 30, 1 << 30, 1, 2, 5, 40, vocab - 1])
            row["repetition"], row["line"], row["top_logprobs"] = 1, -1, r.choice([-1, 0, 1, 5])
            if row["top_k"] == 1:
                row["temperature"] = 1
            if r.random() < 0.4:
                row["line"] = index
                row["frequency"], row["presence"] = r.choice([0, 0.5, -1]), r.choice([0, 1, -0.5])
                row["repetition"] = r.choice([1, 1.3, 0.7])
            for name in ("bias", "forbidden"):
                row[f"{name}_begin"] = len(self.bias)
                if r.random() < 0.3:
                    ids = r.sample(range(vocab), min(vocab // 2, r.choice([1, 3, 90])))
                    self.bias += [(token, r.choice([-100.0, -1.0, 2.0, 7.0])) for token in ids]
                row[f"{name}_end"] = len(self.bias)
        self.lengths = torch.randint(1, 100, (rows,), generator=g, dtype=torch.int32)
        self.slots = torch.arange(rows).flip(0) % SLOTS
        self.newest = torch.full((SLOTS,), -7)
        self.greedy = self.logits.argmax(dim=-1)

    def without_options(self) -> Case:
        """Leaves the rows nothing but their temperature, or that they are greedy, and returns this case."""
        options = {"line": -1, "top_p": 1, "min_p": 0, "repetition": 1, "top_logprobs": -1}
        for name, value in options.items():
            self.rows[name] = value
        self.rows["top_k"][self.rows["top_k"] > 1] = 1 << 30
        for name in ("bias", "forbidden"):
            self.rows[f"{name}_end"] = self.rows[f"{name}_begin"]
        return self

    def arguments(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Arguments of `sample_rows` but the last. On a CPU they are the case's own tensors."""
        bias = torch.from_numpy(np.array(self.bias or [(0, 0.0)], dtype=BIAS).view(np.int32))
        rows = torch.from_numpy(self.rows.view(np.int32))
        there = (rows, bias, self.counts, self.greedy, self.lengths, self.slots, self.newest)
        return self.logits.to(device, dtype), *(tensor.to(device) for tensor in there)

    def edited(self, index: int) -> np.ndarray:
        """The row's logits after penalties and biases, over its temperature."""
        row, x = self.rows[index], self.logits[index].clone()
        if row["line"] >= 0:
            known = self.counts_before[index]
            x -= float(row["frequency"]) * (known >> 1)
            x -= float(row["presence"]) * (known > 1)
            strength = float(row["repetition"])
            x = torch.where(known > 0, torch.where(x > 0, x / strength, x * strength), x)
        for token, value in self.bias[row["bias_begin"] : row["bias_end"]]:
            x[token] += value
        for token, _ in self.bias[row["forbidden_begin"] : row["forbidden_end"]]:
            x[token] = -math.inf
        return (x / float(row["temperature"])).double().numpy()


def check(case: Case, tokens: Tensor, logprobs: RowLogprobs) -> None:
    for index, token in enumerate(tokens.tolist()):
        row, scaled = case.rows[index], case.edited(index)
        highest = scaled.max()
        weights = np.exp(scaled - highest)
        total = float(weights.sum())
        ranking = np.argsort(-scaled, kind="stable")
        if row["top_k"] == 1:
            assert scaled[token] >= highest - 1e-5
        else:
            ranked = weights[ranking]
            before = np.cumsum(ranked) - ranked
            kept = np.arange(len(ranked)) < row["top_k"]
            if row["top_p"] < 1:
                kept &= before < float(row["top_p"]) * total
            kept &= ranked >= float(row["min_p"])
            allowed = np.sort(ranking[kept])
            ends = np.cumsum(weights[allowed])
            target = uniform(int(row["seed"]), int(case.lengths[index])) * ends[-1]
            expected = allowed[np.searchsorted(ends, target, side="right")]
            margin = float(np.abs(ends - target).min()) / total
            edge = ranked[kept][-1]
            # With a tie or a near tie at the filters' edge, rounding decides who is left.
            near = margin < 1e-6 or (np.abs(ranked[~kept] - edge) < 1e-6 * edge).any()
            assert token == expected or near, f"row {index}: {token}, not {expected}, margin {margin}"
        assert case.newest[case.slots[index]] == token
        if row["top_logprobs"] >= 0:
            found = scaled - highest - math.log(total)
            assert logprobs.chosen[index] == pytest.approx(found[token], abs=1e-4)
            wanted = int(row["top_logprobs"])
            ids = logprobs.top_ids[index, :wanted].tolist()
            assert len(set(ids)) == wanted
            assert logprobs.top_values[index, :wanted].tolist() == pytest.approx(found[ranking[:wanted]], abs=1e-4)
            assert found[ids] == pytest.approx(found[ranking[:wanted]], abs=1e-4)
        change = case.counts[index] - case.counts_before[index]
        counted = [token] if row["line"] >= 0 else []
        assert change.nonzero().flatten().tolist() == counted and change.sum() == 2 * len(counted)
