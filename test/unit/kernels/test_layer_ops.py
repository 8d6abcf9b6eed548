"""The ops of the layers: references against formulas written out in float64, and the CPU's against the references."""

import math

import pytest
import torch
from torch import Tensor

from fixtures.op_cases import OPS, check_op
from mysglang.srt.kernels.activation import gelu_and_mul, gelu_tanh_and_mul, sigmoid_gated, silu_and_mul, soft_cap
from mysglang.srt.kernels.attention import dense_attention
from mysglang.srt.kernels.cpu import gemm as onednn
from mysglang.srt.kernels.gemm import gated_linear, heads_linear, linear, pack_linear_weight, unpack_linear_weight
from mysglang.srt.kernels.kvcache import store_kv
from mysglang.srt.kernels.norm import fused_add_rms_norm, rms_norm
from mysglang.srt.kernels.rotary import rope, rope_and_store

DTYPES = [torch.float32, torch.bfloat16]
HEAD_DIM = 32
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def turned(heads: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    """Dimension i and i + half as the parts of a complex number, times e^(i angle). heads: [T, n, head_dim]."""
    cos, sin = cos_sin[positions].double().chunk(2, dim=-1)
    x, y = heads.double().chunk(2, dim=-1)
    result = torch.complex(x, y) * torch.complex(cos, sin).unsqueeze(1)
    return torch.cat((result.real, result.imag), dim=-1)


def cos_sin_table() -> Tensor:
    angles = torch.outer(torch.arange(100.0), torch.rand(HEAD_DIM // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
class TestNormAndActivation:
    def test_rms_norm(self, dtype: torch.dtype) -> None:
        x, weight = torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype)
        before = x.clone()
        close(rms_norm(x, weight, 1e-3), normed(x, weight, 1e-3))
        assert torch.equal(x, before)

    def test_rms_norm_with_a_float32_weight(self, dtype: torch.dtype) -> None:
        """The weight is not rounded on the way: the result is rounded once."""
        x, weight = torch.randn(5, 48).to(dtype), 1 + torch.randn(48) / 300
        found, total = fused_add_rms_norm(x.clone(), x.clone(), weight, 1e-3)
        assert torch.equal(total, 2 * x)
        for mine, values in ((rms_norm(x, weight, 1e-3), x), (found, 2 * x)):
            exact = normed(values, weight, 1e-3)
            close(mine, exact)
            if dtype is torch.bfloat16:
                assert (mine == exact.to(dtype)).float().mean() > 0.98

    def test_soft_cap(self, dtype: torch.dtype) -> None:
        x = torch.randn(5, 48).mul_(20).to(dtype)
        expected = (30 * torch.tanh(x.double() / 30)).to(dtype)
        found = soft_cap(x, 30.0)
        close(found, expected.double())
        assert found.data_ptr() == x.data_ptr()

    def test_sigmoid_gated(self, dtype: torch.dtype) -> None:
        x, gate = torch.randn(5, 48).to(dtype), torch.randn(5, 96).to(dtype)[:, ::2]
        expected = x.double() * gate.double().sigmoid()
        found = sigmoid_gated(x, gate)
        close(found, expected)
        assert found.data_ptr() == x.data_ptr()

    def test_fused_add_rms_norm(self, dtype: torch.dtype) -> None:
        x, residual, weight = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype)
        total = (x.double() + residual.double()).to(dtype)
        out, new_residual = fused_add_rms_norm(x, residual, weight, 1e-5)
        assert torch.equal(new_residual, total)
        close(out, normed(total, weight, 1e-5))

    def test_activations(self, dtype: torch.dtype) -> None:
        x = torch.randn(5, 96).to(dtype)
        gate, up = x.double().chunk(2, dim=-1)
        cube = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        close(silu_and_mul(x), gate / (1 + (-gate).exp()) * up)
        close(gelu_and_mul(x), gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up)
        close(gelu_tanh_and_mul(x), gate * (1 + cube.tanh()) / 2 * up)
        assert silu_and_mul(x).is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 70])
def test_onednn_gives_the_same_bits_for_its_layout(num_rows: int, with_bias: bool, dtype: torch.dtype) -> None:
    weight = torch.randn(96, 64).to(dtype)
    bias = torch.randn(96).to(dtype) if with_bias else None
    x = torch.randn(num_rows, 200).to(dtype)[:, 50:114]
    packed = onednn.pack_linear_weight(weight)
    assert torch.equal(onednn.linear(x, packed, bias), linear.reference(x, weight, bias))
    assert torch.equal(onednn.unpack_linear_weight(packed).to(dtype), weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 70])
@pytest.mark.parametrize(("outputs", "inputs"), [(128, 64), (96, 64), (90, 64), (128, 63)])
def test_packed_weights(outputs: int, inputs: int, num_rows: int, with_bias: bool, dtype: torch.dtype) -> None:
    """Also in shapes that no kernel takes."""
    weight = (torch.randn(outputs, inputs) / 8).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    x = torch.randn(num_rows, 200).to(dtype)[:, 50 : 50 + inputs]
    packed = pack_linear_weight(weight)
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    close(linear(x, packed, bias), wanted)
    gate, up = wanted.chunk(2, dim=-1)
    close(gated_linear(x, packed, bias, "silu"), gate / (1 + (-gate).exp()) * up)
    assert linear(x[None], packed, bias).shape == (1, num_rows, outputs)
    assert torch.equal(unpack_linear_weight(packed), weight)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("inputs", [1, 7, 23, 64])
def test_a_row_without_numbers_reaches_no_other(inputs: int, dtype: torch.dtype) -> None:
    """Also where a row ends in the middle of a pair that the processor multiplies at once."""
    weight, x = torch.randn(96, inputs).to(dtype), torch.randn(9, inputs).to(dtype)
    expected = linear(x, weight, None)
    x[[3, 8]] = math.nan
    for each in (weight, pack_linear_weight(weight), onednn.pack_linear_weight(weight)):
        found = linear(x, each, None)
        assert found[[3, 8]].isnan().all()
        torch.testing.assert_close(found[[0, 1, 2, 4, 5, 6, 7]], expected[[0, 1, 2, 4, 5, 6, 7]])


def projections(tokens: int, layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of 4 heads, keys of 2, and the tensor that they are slices of; its last two heads are none of theirs."""
    qkv = torch.randn(tokens, 9 * HEAD_DIM).to(dtype)
    if layout == "separate":
        return torch.randn(tokens, 4 * HEAD_DIM).to(dtype), torch.randn(tokens, 2 * HEAD_DIM).to(dtype), qkv
    q_at, k_at = {"neighbours": (0, 4), "apart": (0, 5), "keys first": (2, 0)}[layout]
    heads = qkv.view(tokens, 9, HEAD_DIM)
    return heads[:, q_at : q_at + 4].flatten(1), heads[:, k_at : k_at + 2].flatten(1), qkv


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neighbours", "apart", "keys first", "separate"])
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("choice", ["chosen", "reference"])
@pytest.mark.parametrize("norms", [False, True])
class TestRopeAndStore:
    def test_turns_and_stores(self, norms: bool, dtype: torch.dtype, layout: str, tokens: int, choice: str) -> None:
        q, k, whole = projections(tokens, layout, dtype)
        v = whole[:, 7 * HEAD_DIM :]
        weights = (torch.randn(HEAD_DIM).to(dtype), torch.randn(HEAD_DIM).to(dtype)) if norms else None
        positions, table = torch.randint(0, 100, (tokens,)), cos_sin_table()
        heads = [x.clone().view(tokens, -1, HEAD_DIM) for x in (q, k)]
        if weights is not None:
            heads = [normed(x, weight, 1e-6).to(dtype) for x, weight in zip(heads, weights, strict=True)]
        expected = [turned(x, positions, table).flatten(1) for x in heads]
        caches = [torch.full((10, 2, HEAD_DIM), 7.0, dtype=dtype) for _ in "kv"]
        loc = torch.randperm(10)[:tokens]
        untouched = self.beside(whole, q, k)
        op = rope_and_store if choice == "chosen" else rope_and_store.reference
        op(q, k, v, positions, table, (*weights, 1e-6) if weights else None, *caches, loc)
        close(q, expected[0])
        close(k, expected[1])
        assert torch.equal(self.beside(whole, q, k), untouched)
        for cache, x in zip(caches, (k, v), strict=True):
            assert torch.equal(cache[loc].flatten(1), x)
            others = torch.ones(10, dtype=torch.bool).index_fill_(0, loc, False)
            assert (cache[others] == 7).all()

    @staticmethod
    def beside(whole: Tensor, *parts: Tensor) -> Tensor:
        """The columns of the projection outside the parts."""
        marks = torch.zeros(whole.shape, dtype=torch.bool)
        for part in parts:
            if part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                marks[:, part.storage_offset() : part.storage_offset() + part.shape[1]] = True
        return whole[~marks].clone()


@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_store_kv(cache_dtype: torch.dtype) -> None:
    qkv = torch.randn(3, 8 * HEAD_DIM)
    _, k, v = qkv.split([4 * HEAD_DIM, 2 * HEAD_DIM, 2 * HEAD_DIM], dim=-1)
    caches = [torch.zeros(10, 2, HEAD_DIM, dtype=cache_dtype) for _ in range(2)]
    store_kv(k, v, *caches, torch.tensor([7, 2, 5]))
    for cache, x in zip(caches, (k, v), strict=True):
        assert torch.equal(cache[[7, 2, 5]].flatten(1), x.to(cache_dtype))
        assert cache[[0, 1, 3, 4, 6, 8, 9]].abs().sum() == 0


@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("copy_pages")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_of_pages_on_the_host(name: str, dtype: torch.dtype) -> None:
    check_op(name, "cpu", dtype, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_of_parts_of_wider_tensors(interleaved: bool, dtype: torch.dtype) -> None:
    wide, rows, positions = torch.randn(7, 3, 50).to(dtype), torch.randn(7, 45).to(dtype), torch.randint(0, 100, (7,))
    before, table = (wide.clone(), rows.clone()), cos_sin_table()
    rope(wide[..., 18:], rows[:, 13:], positions, table, interleaved)
    for found, plain in ((wide[..., 18:], before[0][..., 18:]), (rows[:, None, 13:], before[1][:, None, 13:])):
        # Neighbours side by side are halves in another order.
        order = torch.arange(HEAD_DIM).view(-1, 2).T.flatten() if interleaved else torch.arange(HEAD_DIM)
        close(found[..., order], turned(plain[..., order], positions, table))
    assert torch.equal(wide[..., :18], before[0][..., :18]) and torch.equal(rows[:, :13], before[1][:, :13])


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_head_by_head(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 40)[..., 8:].to(dtype), torch.randn(3, 6, 32).mul_(32**-0.5).to(dtype)
    close(heads_linear(x, weight), torch.stack([x[:, i].double() @ weight[i].double().T for i in range(3)], dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "keys", "causal"), [(5, 9, False), (1, 300, False), (70, 70, True), (1, 1, True)])
def test_dense_attention(queries: int, keys: int, causal: bool, dtype: torch.dtype) -> None:
    """The CPU's own is found, and both say what the formula says."""
    q, k, v = (torch.randn(3, *shape).to(dtype) for shape in ((queries, 24), (keys, 24), (keys, 10)))
    scores = q.double() @ k.double().mT * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    assert dense_attention.choose("cpu") is not dense_attention.reference
    for attend in (dense_attention, dense_attention.reference):
        out, lse = attend(q, k, v, 0.3, causal)
        assert out.dtype == lse.dtype == torch.float32
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(out.double(), scores.softmax(-1) @ v.double(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=tolerance, atol=tolerance)
