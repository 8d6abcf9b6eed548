"""Ops of deterministic inference: near their references, and each row the same bit for bit whatever is beside it."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.emulated_tiles import emulated_tiles
from fixtures.triton_on_cpu import run_interpreted
from mysgl_kernel.cpu.toolchain import find_gxx
from mysglang.srt.kernels.activation import gated, sigmoid_gated, soft_cap
from mysglang.srt.kernels.cpu import invariant
from mysglang.srt.kernels.experts import (
    fused_experts,
    int8_fused_experts,
    pack_experts,
    pack_int8_experts,
    sigmoid_scores,
    topk_softmax,
)
from mysglang.srt.kernels.gemm import (
    gated_linear,
    heads_linear,
    int8_gated_linear,
    int8_linear,
    linear,
    pack_int8_weight,
    pack_linear_weight,
)
from mysglang.srt.kernels.norm import fused_add_rms_norm, rms_norm
from mysglang.srt.kernels.op import Op, use_ops
from mysglang.srt.kernels.rotary import rope, rope_and_store
from mysglang.srt.kernels.sampling import Filters, draw_tokens, log_probabilities, most_likely

ROWS = 70
WIDTHS = [33, 96, 3072]
"""Widths that fill no vector, few vectors, and so many that threads would share the rows."""

pytestmark = pytest.mark.promise(26)


@pytest.fixture(autouse=True, params=[1, 2])
def invariant_ops(request: pytest.FixtureRequest) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(3)
    use_ops("invariant")
    yield
    use_ops("fastest")
    torch.set_num_threads(threads)


def check_rows(rows_of: Callable[[Tensor], Tensor]) -> Tensor:
    """All rows by their numbers; any of them, in any order, are the same. Returns all."""
    whole = rows_of(torch.arange(ROWS))
    order = torch.randperm(ROWS)
    for rows in (order[:1], order[:2], order[:7], order[:33], order):
        assert torch.equal(rows_of(rows), whole[rows])
    return whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(50, 33), (96, 96), (1024, 512)])
def test_linear(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x = torch.randn(ROWS, inputs).to(dtype)
    plain = torch.randn(outputs, inputs).mul_(inputs**-0.5).to(dtype)
    bias = torch.randn(outputs).to(dtype)
    for weight in (plain, pack_linear_weight(plain)):
        products = check_rows(lambda rows, weight=weight: linear(x[rows], weight, bias))
        exact = F.linear(x.double(), plain.double(), bias.double())
        assert float((products.double() - exact).norm() / exact.norm()) < (1e-5 if dtype is torch.float32 else 1e-2)
        check_rows(lambda rows, weight=weight: gated_linear(x[rows], weight, bias, "silu"))


def test_a_product_whose_places_differ_is_done_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_place(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The second half of eight and more rows comes out a little different."""
        out = F.linear(x, weight, bias)
        if len(x) >= 8:
            out[len(x) // 2 :] *= 1 + 1e-6
        return out

    monkeypatch.setattr(invariant.gemm, "linear", by_place)
    monkeypatch.setattr(invariant, "_rows_at_once", {})
    weight, x = torch.randn(40, 24), torch.randn(ROWS, 24)
    check_rows(lambda rows: linear(x[rows], weight, None))
    assert list(invariant._rows_at_once.values()) == [4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "inner"), [(40, 33), (96, 64)])
def test_experts(width: int, inner: int, dtype: torch.dtype) -> None:
    """However many other rows go to a row's experts."""
    x, logits = torch.randn(ROWS, width).to(dtype), torch.randn(ROWS, 9).to(dtype)
    logits[:, 4] += 2
    plain = (
        torch.randn(9, 2 * inner, width).mul_(width**-0.5).to(dtype),
        torch.randn(9, width, inner).mul_(inner**-0.5).to(dtype),
    )
    check_rows(lambda rows: torch.cat(topk_softmax(logits[rows], 3, True), dim=1))
    ids, gates = topk_softmax(logits, 3, True)
    for weights in (plain, pack_experts(*plain)):
        found = check_rows(
            lambda rows, weights=weights: fused_experts(x[rows], *weights, ids[rows], gates[rows], "silu")
        )
        expected = fused_experts.reference(x.float(), *(weight.float() for weight in plain), ids, gates, "silu")
        assert float((found - expected).norm() / expected.norm()) < (1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.skipif(find_gxx() is None, reason="no g++")
def test_products_do_not_use_amx() -> None:
    """Its tiles sum in another order, and only where there are many rows. They are emulated here."""
    inputs, outputs = 4096, 256
    x, weight = torch.randn(ROWS, inputs).bfloat16(), torch.randn(outputs, inputs).bfloat16()
    # Neighbours that nearly cancel out: the order of a sum is seen in its first digits.
    x[:, 1::2], weight[:, 1::2] = -1.02 * x[:, ::2], weight[:, ::2]
    whole = (30 * weight).clamp(-127, 127).to(torch.int8)
    plain, int8, scales = pack_linear_weight(weight), pack_int8_weight(whole), torch.rand(outputs) / 30
    ids, gates = torch.zeros(ROWS, 1, dtype=torch.int32), torch.ones(ROWS, 1)
    experts = pack_experts(weight[None, :64].contiguous(), weight.T[None, :, :32].contiguous())
    int8_experts = pack_int8_experts(whole[None, :64].contiguous(), whole.T[None, :, :32].contiguous())
    factors = scales[None, :64].contiguous(), torch.rand(1, inputs) / 30

    def products(rows: Tensor) -> list[Tensor]:
        some, routing = x[rows], (ids[rows], gates[rows], "silu")
        return [
            linear(some, plain, None),
            gated_linear(some, plain, None, "silu"),
            int8_linear(some, int8, scales, None),
            int8_gated_linear(some, int8, scales, None, "silu"),
            fused_experts(some, *experts, *routing),
            int8_fused_experts(some, *int8_experts, factors, *routing),
        ]

    with emulated_tiles():
        for place in range(len(products(torch.arange(1)))):
            check_rows(lambda rows, place=place: products(rows)[place])
        use_ops("fastest")
        alone = [torch.cat(each) for each in zip(*(products(row) for row in torch.arange(ROWS)[:, None]), strict=True)]
        for all_rows, single in zip(products(torch.arange(ROWS)), alone, strict=True):
            assert not torch.equal(all_rows, single), "many rows take tiles"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", gated.values(), ids=gated)
def test_gates(op: Op[[Tensor], Tensor], width: int, dtype: torch.dtype) -> None:
    x = torch.randn(ROWS, 2 * width).to(dtype)
    whole = check_rows(lambda rows: op(x[rows]))
    torch.testing.assert_close(whole, op.reference(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, ROWS, width).to(dtype)
    for weight in (torch.randn(width).to(dtype), torch.randn(width)):
        whole = check_rows(lambda rows, weight=weight: rms_norm(x[rows], weight, 1e-5))
        torch.testing.assert_close(whole, rms_norm.reference(x, weight, 1e-5))
        check_rows(
            lambda rows, weight=weight: torch.cat(fused_add_rms_norm(x[rows], residual[rows], weight, 1e-5), dim=1)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [33, 96, 50_000])
def test_soft_caps_and_gates(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(ROWS, width).mul_(9).to(dtype)
    whole = check_rows(lambda rows: soft_cap(x[rows], 4.0))
    torch.testing.assert_close(whole, soft_cap.reference(x.clone(), 4.0))
    gate = torch.randn(ROWS, width).to(dtype)
    whole = check_rows(lambda rows: sigmoid_gated(x[rows].clone(), gate[rows]))
    torch.testing.assert_close(whole, sigmoid_gated.reference(x.clone(), gate))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "dim"), [(3, 24), (16, 128)])
def test_rotary(heads: int, dim: int, normed: bool, dtype: torch.dtype) -> None:
    qkv = torch.randn(ROWS, 3 * heads * dim).to(dtype)
    angles = torch.rand(500, dim // 2) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(500, (ROWS,))
    norms = (torch.randn(dim).to(dtype), torch.randn(dim).to(dtype), 1e-5) if normed else None

    def turned(rows: Tensor) -> Tensor:
        caches = torch.zeros(2, len(rows), heads, dim, dtype=dtype)
        q, k, v = qkv[rows].chunk(3, dim=-1)
        rope_and_store(q, k, v, positions[rows], table, norms, *caches, torch.arange(len(rows)))
        return torch.cat((q, k, caches[0].flatten(1), caches[1].flatten(1)), dim=-1)

    check_rows(turned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_head_by_head(dtype: torch.dtype) -> None:
    """And the rotation between them."""
    x, weight = torch.randn(ROWS, 5, 136)[..., :128].to(dtype), torch.randn(5, 96, 128).to(dtype)
    whole = check_rows(lambda rows: heads_linear(x[rows], weight).flatten(1))
    torch.testing.assert_close(whole.view(ROWS, 5, 96), heads_linear.reference(x, weight), rtol=2e-2, atol=0.3)
    angles = torch.rand(500, 16) * 6
    table, positions = torch.cat((angles.cos(), angles.sin()), dim=-1), torch.randint(500, (ROWS,))

    def turned(rows: Tensor) -> Tensor:
        part = x[rows]
        rope(part[:, :4, :32], part[:, 4, :32], positions[rows], table, True)
        return part.flatten(1)

    check_rows(turned)


@pytest.mark.parametrize("experts", [13, 256, 2000])
def test_scores_of_experts(experts: int) -> None:
    logits = torch.randn(ROWS, experts).mul_(4)
    whole = check_rows(lambda rows: sigmoid_scores(logits[rows]))
    torch.testing.assert_close(whole, sigmoid_scores.reference(logits))


@pytest.mark.parametrize("vocab", [1003, 50257])
def test_log_probabilities(vocab: int) -> None:
    # Many equals.
    logits = torch.randn(ROWS, vocab).mul_(4).bfloat16()
    whole = check_rows(lambda rows: log_probabilities(logits[rows]))
    assert torch.allclose(whole, log_probabilities.reference(logits), atol=1e-5)
    ids = check_rows(lambda rows: most_likely(whole[rows], 20)[1])
    values, fewer = most_likely(whole, 5)
    assert torch.equal(fewer, ids[:, :5]) and torch.equal(values, most_likely.reference(whole, 5)[0])
    ranked = whole.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(ids, ranked.indices[:, :20])
    assert most_likely(whole, 0)[0].shape == (ROWS, 0)


def test_the_most_likely_of_no_numbers() -> None:
    values, ids = most_likely(torch.full((2, 30), float("nan")), 3)
    assert values.isnan().all() and ids.tolist() == [[0, 1, 2]] * 2


def test_draws() -> None:
    """Also beside rows with filters that a row has not."""
    logits, uniforms = torch.randn(ROWS, 40000), torch.rand(ROWS, dtype=torch.float64)
    heat = torch.rand(ROWS) + 0.5
    everything = torch.full((ROWS,), 1 << 30, dtype=torch.int32)

    def drawn(rows: Tensor) -> Tensor:
        top_k = everything[rows] if len(rows) % 2 else None
        return draw_tokens(logits[rows], uniforms[rows], heat[rows], Filters(top_k))

    check_rows(drawn)


TRITON = """
from dataclasses import replace
from fixtures.op_cases import OPS, check_op
from mysglang.srt.kernels.cuda import experts, experts_blocks, experts_plans, experts_sort, invariant_gemm, sampling
from mysglang.srt.kernels.cuda.mixture import Mixture
from mysglang.srt.kernels.cuda.select_experts import topk_softmax
from mysglang.srt.kernels.op import use_ops
use_ops("invariant")
# More outputs are more of the same programs, which the interpreter runs one after another.
linears = [name for name, (op, _) in OPS.items() if op.name == "linear" and "many outputs" not in name]
OPS[linears[0]][0].invariant = {"cpu": OPS[linears[0]][0].invariant["cuda"]}
for name in linears:
    check_op(name, "cpu", torch.float32, 1e-5)
x, weight, bias = torch.randn(70, 40), torch.randn(100, 40), torch.randn(100)
whole = invariant_gemm.linear(x, weight, bias)
for rows in (torch.tensor([69]), torch.randperm(70), torch.arange(3, 12)):
    assert torch.equal(invariant_gemm.linear(x[rows], weight, bias), whole[rows])
assert invariant_gemm.linear(x[:0], weight, bias).shape == (0, 100)
# Whatever the tile, the sums are the same; and what is not is found out.
for tile in invariant_gemm.LARGE_TILES:
    assert torch.equal(invariant_gemm._with_tile(tile)(x, weight, bias), whole)
invariant_gemm.LARGE_TILES, invariant_gemm.ENOUGH_PROGRAMS = (invariant_gemm.Tile(16, 32, 4),), 3
ways = invariant_gemm.Ways(waves=False, large_tiles=True)
assert torch.equal(invariant_gemm._product(x, weight, bias, ways), whole)
assert invariant_gemm.best_tile(70, 100).rows == 16 and invariant_gemm.best_tile(5, 5).rows == 64
invariant_gemm.TRIED_WEIGHTS, invariant_gemm.TRIED_ROWS = ((100, 40),), (1, 20)
assert invariant_gemm._alike(invariant_gemm._with_tile(invariant_gemm.LARGE_TILES[0]), x.device, torch.float32)
assert not invariant_gemm._alike(lambda x, w, b: (x.double() @ w.double().T + b).float(), x.device, torch.float32)
# Blocks for cuBLAS, and what is left of the rows; where its bits are others it gets none.
assert invariant_gemm.library_blocks(70, [32, 16]) == [32, 32]
assert invariant_gemm.library_blocks(49, [32, 16]) == [32, 16]
assert invariant_gemm.library_blocks(15, [16]) == invariant_gemm.library_blocks(70, []) == []
asked = []
invariant_gemm.LIBRARY_ROWS = (32, 16)
invariant_gemm._agrees = lambda x, weight, bias, rows: asked.append(rows) or rows == 16
for some in (bias, None):
    found = invariant_gemm._product(x, weight, some, ways)
    assert torch.allclose(found, torch.nn.functional.linear(x, weight, some), atol=1e-4)
    assert torch.equal(found[64:], invariant_gemm._of_some_rows(x, weight, some, ways)[64:])
assert asked == [32, 16] * 2
assert invariant_gemm.order_matters(found)
assert not invariant_gemm.order_matters(found * float("nan")) and not invariant_gemm.order_matters(torch.zeros(3))
# Experts: alone, and beside rows that fill other blocks of the same ones.
routed = torch.randn(70, 9)
routed[:, 4] += 2
ids, gates = topk_softmax(routed, 3, True)
ids_of_equals, _ = topk_softmax(torch.zeros(2, 5), 3, False)
assert torch.equal(ids_of_equals, torch.tensor([[0, 1, 2]] * 2, dtype=torch.int32))
gate_up, down = torch.randn(9, 48, 40) / 6, torch.randn(9, 40, 24) / 5
whole = experts.invariant_fused_experts(x, gate_up, down, ids, gates, "silu")
for rows in (torch.tensor([69]), torch.randperm(70)):
    part = experts.invariant_fused_experts(x[rows], gate_up, down, ids[rows], gates[rows], "silu")
    assert torch.equal(part, whole[rows])
# Weights that the copy engine reads are the same ones, also where a tile goes beyond a matrix or its rows.
experts_blocks.has_copy_engine = lambda _: True
copied = experts_blocks.blocks_of(64, 64, 128, 4, 3, copied=True)
assert torch.allclose(Mixture(x, gate_up, down, ids, gates, "silu", None).run(copied), whole, atol=1e-5)
# Half-empty blocks with tiles of half as many rows, and tiles of a block beside each other, change nothing.
for rows in (32, 64):
    tiles = (replace(tile, rows=rows, halved=True, across=True) for tile in (copied.tile, copied.down))
    found = Mixture(x, gate_up, down, ids, gates, "silu", None).run(experts_blocks.Blocks(*tiles))
    assert torch.allclose(found, whole, atol=1e-5)
# Many pairs are counted in pieces before they are sorted.
experts_sort.SORTED_ALONE, experts_sort.COUNTED_PAIRS = 0, 32
experts_sort.SUMMED_EXPERTS, experts_sort.SUMMED_PIECES = 4, 2
assert torch.equal(experts.invariant_fused_experts(x, gate_up, down, ids, gates, "silu"), whole)
# The lists of both sorts are those of a plain one.
for alone in (0, 1000):
    experts_sort.SORTED_ALONE = alone
    for count, number, rows in ((1, 5, 16), (170, 9, 16), (170, 3, 64), (300, 70, 32)):
        chosen = torch.randint(number, (count, 1), dtype=torch.int32)
        chosen[: count // 3] = number - 1
        most = experts_blocks.most_blocks(count, number, rows)
        order, owners, used = (torch.full((size,), -1, dtype=torch.int32) for size in (most * rows, most, 1))
        for kernel, grid, arguments, constants in experts_sort.sort_launches(chosen, order, owners, used, number, rows):
            kernel[grid](*arguments, **constants)
        lists = [(chosen[:, 0] == expert).nonzero()[:, 0].tolist() for expert in range(number)]
        blocks = [-(-len(pairs) // rows) for pairs in lists]
        assert used.item() == sum(blocks)
        assert owners[:used].tolist() == [expert for expert in range(number) for _ in range(blocks[expert])]
        padded = [pairs + [count] * (-len(pairs) % rows) for pairs in lists]
        assert order[: used * rows].tolist() == [pair for pairs in padded for pair in pairs]
# One row has everything compiled that more rows will need, whatever the tile.
tiles = []
experts_blocks._product_kernel.warmup = lambda *arguments, grid, ROWS, OUTPUTS, **more: tiles.append((ROWS, OUTPUTS))
for _ in range(2):
    experts.fused_experts(x[:1], gate_up, down, ids[:1], gates[:1], "silu")
listed = (experts_plans.DIRECT, *(plan for _, plan in experts_plans.READ))
plans = [plan for plan in listed if isinstance(plan, experts_blocks.Blocks)]
assert tiles == [(tile.rows, tile.outputs) for plan in plans for _ in "12" for tile in (plan.tile, plan.down)]
assert experts.fused_experts(x[:0], gate_up, down, ids[:0], gates[:0], "silu").shape == (0, 40)
broken = torch.full((1, 9), float("nan"))
ids, gates = topk_softmax(broken, 3, True)
assert gates.isnan().all() and ids.min() >= 0 and ids.max() < 9
logits = torch.randn(5, 1003)
found = sampling.invariant_log_probabilities(logits)
assert torch.allclose(found, logits.log_softmax(-1), atol=1e-5) and found.shape == logits.shape
values, ids = sampling.invariant_most_likely(found.round(), 9)
assert torch.equal(ids, found.round().sort(dim=-1, descending=True, stable=True).indices[:, :9])
print("all agree")
"""


@pytest.mark.parametrize("invariant_ops", [1], indirect=True)  # the threads of this process are not the program's
def test_triton_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TRITON).strip() == "all agree"
