"""The CUDA kernel of decode attention over latent rows on random plans, against float32 softmax: odd lengths, numbers
of heads and pages, trees of shared pages.
"""

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
from mysglang.srt.layers.attention.decode_plan import DecodePlanner
from mysglang.srt.layers.attention.planned_kinds import kind_of

latent = pytest.importorskip("mysgl_kernel.latent_attention")

TOLERANCE = {torch.bfloat16: 1.2e-2, torch.float16: 2e-3}
SIZE, VALUE = 576, 512


class Case:
    """One random step; what no row reads is NaN, and so is room for partial results."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.rng = rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.page_size = int(rng.choice([1, 1, 4, 16]))
        heads = int(rng.choice([1, 4, 16, 16, 20, 32, 128]))
        self.spec = AttentionSpec(
            layer_id=0, num_heads=heads, num_kv_heads=1, head_dim=SIZE, scale=192**-0.5, latent_dim=VALUE
        )
        longest = int(rng.choice([40, 300, 1500]))
        self.seq_lens: Ints = rng.integers(1, longest, int(rng.choice([1, 2, 5, 17, 40, 64]))).astype(np.int32)
        self.shared = random_tree(rng, self.seq_lens, self.page_size) if rng.random() < 0.6 else None
        self.pages = paged_rows(rng, self.seq_lens, self.page_size, self.shared)
        self.rows = torch.randn(self.pages.num_pages * self.page_size, 1, SIZE, device="cuda").to(dtype)
        unread = np.ones(len(self.rows), dtype=bool)
        for row, length in enumerate(self.seq_lens):
            unread[self.pages.locations(row, int(length), self.page_size)] = False
        self.rows[torch.from_numpy(unread).cuda()] = float("nan")
        width = heads * SIZE
        self.q = torch.randn(len(self.seq_lens), width + 64, device="cuda").to(dtype)[:, :width]

    def run(self, shared: SharedPrefixes | None, *, blocks: int = 132, early: bool = False) -> Tensor:
        planner = DecodePlanner(kind_of(self.spec, blocks), len(self.seq_lens))
        plan = poisoned_plan(planner, self.pages.slots, self.seq_lens, shared)
        table = torch.from_numpy(self.pages.table).cuda()
        out: Tensor = latent.planned_latent_decode(
            self.q, self.rows, table, plan, self.page_size, self.spec.scale, early
        )
        return out

    def expected(self) -> Tensor:
        out = []
        for row, length in enumerate(self.seq_lens):
            at = torch.from_numpy(self.pages.locations(row, int(length), self.page_size)).long().cuda()
            query = self.q[row].reshape(1, self.spec.num_heads, SIZE)
            position = torch.tensor([int(length) - 1], device="cuda")
            keys = self.rows[at]
            out.append(attend(query, keys, keys[..., :VALUE], position, self.spec).reshape(-1))
        return torch.stack(out).to(self.q.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(24))
def test_random_steps(seed: int, dtype: torch.dtype) -> None:
    case = Case(seed, dtype)
    expected = case.expected()
    blocks = int(case.rng.choice([3, 132, 500]))
    found = case.run(case.shared, blocks=blocks, early=True)
    assert_close(found, expected, TOLERANCE[dtype])
    assert torch.equal(case.run(case.shared, blocks=blocks), found), "not the same bits"
    assert_close(case.run(None, blocks=blocks), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("units", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(4))
def test_partial_results_are_joined_either_way(seed: int, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent, "LEAN_JOIN_UNITS", units)
    case = Case(100 + seed, torch.bfloat16)
    assert_close(case.run(case.shared), case.expected(), TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("seed", range(8))
def test_a_broken_row_breaks_who_reads_it(seed: int) -> None:
    """A row that reads a NaN must show it, in one piece or in many, and no other row may."""
    case = Case(200 + seed, torch.bfloat16)
    whole = case.run(case.shared)
    locations = [case.pages.locations(row, int(length), case.page_size) for row, length in enumerate(case.seq_lens)]
    broken = case.rng.choice(locations[int(case.rng.integers(len(locations)))])
    reads = torch.tensor([bool((at == broken).any()) for at in locations], device="cuda")
    case.rows[int(broken)] = float("nan")
    found = case.run(case.shared)
    assert found[reads].isnan().all()
    assert torch.equal(found[~reads], whole[~reads])
