"""The CUDA kernel of decode attention on random plans, against float32 softmax: odd lengths, trees of shared pages."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import assert_close
from fixtures.poisoned_plan import poisoned_plan
from fixtures.reference_attention import attend
from fixtures.shared_pages import paged_rows, random_tree
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.layers.attention.decode_plan import DecodePlanner, DecodeShape

attention = pytest.importorskip("mysgl_kernel.attention")

TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float16: 2e-3}


class Case:
    """One random step; what no row reads is NaN, and so is room for partial results."""

    def __init__(self, seed: int, head_dim: int, dtype: torch.dtype) -> None:
        self.rng = rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.page_size = int(rng.choice([1, 1, 4, 16]))
        kv_heads, group = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 2, 4, 5, 8, 12, 16, 24]))
        window = int(rng.integers(1, 100)) if rng.random() < 0.2 else None
        cap = 5.0 if rng.random() < 0.2 else 0.0
        self.spec = AttentionSpec(
            layer_id=0,
            num_heads=kv_heads * group,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            window=window,
            logit_cap=cap,
            sinks=2 * torch.randn(kv_heads * group, device="cuda") if rng.random() < 0.3 else None,
        )
        longest = int(rng.choice([40, 300, 1500]))
        self.seq_lens: Ints = rng.integers(1, longest, int(rng.choice([1, 2, 5, 17, 40, 64]))).astype(np.int32)
        self.shared = random_tree(rng, self.seq_lens, self.page_size) if rng.random() < 0.5 else None
        self.rows = paged_rows(rng, self.seq_lens, self.page_size, self.shared)
        shape = (self.rows.num_pages * self.page_size, kv_heads, head_dim)
        self.keys, self.values = (torch.randn(shape, device="cuda").to(dtype) for _ in "kv")
        unread = np.ones(len(self.keys), dtype=bool)
        for row, length in enumerate(self.seq_lens):
            unread[self.rows.locations(row, int(length), self.page_size)] = False
        for buffer in (self.keys, self.values):
            buffer[torch.from_numpy(unread).cuda()] = float("nan")
        width = self.spec.num_heads * head_dim
        self.q = torch.randn(len(self.seq_lens), width + 64, device="cuda").to(dtype)[:, :width]

    def run(self, shared: SharedPrefixes | None, *, blocks: int = 132, early: bool = False) -> Tensor:
        spec = self.spec
        shape = DecodeShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window, blocks)
        planner = DecodePlanner(shape, len(self.seq_lens))
        out: Tensor = attention.planned_decode(
            self.q,
            self.keys,
            self.values,
            torch.from_numpy(self.rows.table).cuda(),
            poisoned_plan(planner, self.rows.slots, self.seq_lens, shared),
            self.page_size,
            spec.scale,
            spec.logit_cap,
            early,
            sinks=spec.sinks,
        )
        return out

    def expected(self) -> Tensor:
        spec, out = self.spec, []
        for row, length in enumerate(self.seq_lens):
            at = torch.from_numpy(self.rows.locations(row, int(length), self.page_size)).long().cuda()
            query = self.q[row].reshape(1, spec.num_heads, spec.head_dim)
            position = torch.tensor([int(length) - 1], device="cuda")
            out.append(attend(query, self.keys[at], self.values[at], position, spec).reshape(-1))
        return torch.stack(out).to(self.q.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("seed", range(12))
def test_random_steps(seed: int, head_dim: int, dtype: torch.dtype) -> None:
    case = Case(seed, head_dim, dtype)
    expected = case.expected()
    blocks = int(case.rng.choice([3, 132, 500]))
    found = case.run(case.shared, blocks=blocks, early=True)
    assert_close(found, expected, TOLERANCE[dtype])
    assert torch.equal(case.run(case.shared, blocks=blocks), found), "not the same bits"
    assert_close(case.run(None, blocks=blocks), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("units", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(6))
def test_partial_results_are_joined_either_way(seed: int, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LEAN_JOIN_UNITS", units)
    case = Case(100 + seed, 128, torch.bfloat16)
    assert_close(case.run(case.shared), case.expected(), TOLERANCE[torch.bfloat16])


def test_one_long_row_among_short_ones() -> None:
    case = Case(7, 128, torch.bfloat16)
    case.seq_lens = np.array([9000, *([3] * 30)], dtype=np.int32)
    case.page_size = 1
    case.rows = paged_rows(case.rng, case.seq_lens, 1, None)
    shape = (case.rows.num_pages, case.spec.num_kv_heads, 128)
    case.keys, case.values = (torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in "kv")
    case.q = torch.randn(31, case.spec.num_heads * 128, device="cuda").to(torch.bfloat16)
    assert_close(case.run(None), case.expected(), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("seed", range(8))
def test_a_broken_key_breaks_who_reads_it(seed: int) -> None:
    """A row that reads a NaN must show it, in one piece or in many, and no other row may."""
    case = Case(200 + seed, 128, torch.bfloat16)
    whole = case.run(case.shared)
    locations = [
        case.rows.locations(row, int(length), case.page_size)[-(case.spec.window or int(length)) :]
        for row, length in enumerate(case.seq_lens)
    ]
    broken = case.rng.choice(locations[int(case.rng.integers(len(locations)))])
    reads = torch.tensor([bool((at == broken).any()) for at in locations], device="cuda")
    case.keys[int(broken)] = float("nan")
    found = case.run(case.shared)
    assert found[reads].isnan().all()
    assert torch.equal(found[~reads], whole[~reads])
