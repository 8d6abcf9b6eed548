"""The Triton ops by Triton's interpreter, against their references."""

import pytest

from fixtures.triton_on_cpu import run_interpreted

pytest.importorskip("triton")

SAMPLING = """
from fixtures.sampling_cases import assert_true, random_draws
from mysglang.srt.kernels.cuda import sampling
from mysglang.srt.kernels.sampling import greedy_tokens
sampling.BLOCK, sampling.GREEDY_BLOCK = 64, 64
filters = [(False, False, False), (True, False, False), (False, True, False), (False, False, True), (True, True, True)]
for sampling.FEW, ties, tried in ((16, False, filters[-1:]), (16, True, filters), (256, True, filters[1:])):
    for k, p, m in tried:
        draws = random_draws(3, rows=4, vocab=150, ties=ties, k=k, p=p, m=m)
        assert_true(sampling.draw_tokens(*draws.arguments()), draws)
logits = torch.randn(6, 1000).mul_(4).round_()
logits[1, 700] = float("nan")
logits[2, 999] = float("inf")
assert torch.equal(sampling.greedy_tokens(logits), greedy_tokens.reference(logits))
"""

PAGES = """
from mysglang.srt.kernels.cuda.kvcache import list_pages
table = torch.arange(3 * 700, dtype=torch.int32).view(3, 700)
slots, seq_lens = torch.tensor([2, 0, 1, 0]), torch.tensor([1, 1399, 2, 8], dtype=torch.int32)
indptr, indices = torch.full((5,), -1, dtype=torch.int32), torch.full((800,), -1, dtype=torch.int32)
last = torch.full((4,), -1, dtype=torch.int32)
list_pages(table, slots, seq_lens, 2, indptr, indices, last)
assert indptr.tolist() == [0, 1, 701, 702, 706], indptr
assert last.tolist() == [1, 1, 2, 2], last
assert torch.equal(indices[:706], torch.cat((table[2, :1], table[0], table[1, :1], table[0, :4])))
assert (indices[706:] == -1).all()
# The new tokens of rows 0 and 3 see all; those of row 1 from position 1394 on, that of row 2 itself and the one before.
list_pages(table, slots, seq_lens, 2, indptr, indices, last, extend_lens=torch.tensor([1, 4, 1, 8]), window=2)
assert indptr.tolist() == [0, 1, 701, 702, 706], indptr
assert not indices[1:698].any()
assert torch.equal(indices[698:706], torch.cat((table[0, 697:], table[1, :1], table[0, :4])))
"""

OPS = """
from fixtures.op_cases import OPS, check_op, product
from fixtures.state_cases import RECURRENT, STEPS, check_bfloat16_states, check_rows_without_states
from mysglang.srt.kernels.cuda import gemm
# The tiles for many outputs, over few: the interpreter runs one program after another.
tile_of, many = gemm.plain_tile, {33: 2049, 35: 2113, 37: 4097}
gemm.plain_tile = lambda rows, outputs, inputs: tile_of(rows, many.get(outputs, outputs), inputs)
for name, rows, outputs in (("a row", 1, 33), ("another row", 1, 35), ("two rows", 2, 37)):
    assert gemm.plain_tile(rows, outputs, 1030) != tile_of(rows, outputs, 1030)
    OPS[f"linear of {name} with many outputs"] = OPS["linear of a row"][0], product(rows, 1030, outputs)
for name, (op, _) in OPS.items():
    op.implementations["cpu"] = op.implementations["cuda"]
    check_op(name, "cpu", torch.float32, 1e-5)
    if "in e" in name:
        check_op(name, "cpu", torch.float16, 1e-3)
# One of each op: shapes are compared above, and a GPU compares all with such states.
for name in {OPS[name][0].name: name for name in reversed(RECURRENT)}.values():
    check_bfloat16_states(name, "cpu")
for name in STEPS:
    check_rows_without_states(name, "cpu")
print("all agree")
"""
"""Last, since the references of others go through ops."""


def test_under_the_interpreter() -> None:
    """All in one process: loading torch and Triton takes longer than a program does."""
    assert run_interpreted(SAMPLING + PAGES + OPS).strip() == "all agree"
