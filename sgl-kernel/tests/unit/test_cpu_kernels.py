"""CPU kernels against references in float32, at every level of instructions that this processor has."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.patience import PATIENCE_S
from mysgl_kernel.cpu import attention, experts, gemm, library, rows
from mysgl_kernel.cpu.toolchain import ARCHS, find_gxx
from mysgl_kernel.environ import cpu_threads

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")

HERE = [arch for arch in ARCHS if library.cpu_flags().issuperset(ARCHS[arch].split())]
"""Architectures to test here: each has vectors of its own width."""


@pytest.fixture(params=HERE)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All kernels compiled for this architecture."""
    monkeypatch.setattr(library, "present_arch", lambda: request.param)
    _forget()
    yield request.param
    _forget()


def _forget() -> None:
    for module in (attention, experts, gemm, rows):
        module._LIBRARY.__dict__.pop("loaded", None)
        for thing in vars(module).values():
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def close(found: Tensor, wanted: Tensor, *, relative: float = 0.02) -> None:
    """Within some roundings to bfloat16 of the largest value."""
    found, wanted = found.float(), wanted.float()
    assert found.shape == wanted.shape and found.isfinite().all()
    assert (found - wanted).abs().max() <= relative * wanted.abs().max()


@pytest.mark.parametrize("count", [1, 3, 4, 8, 12, 13, 29])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 32), (70, 96), (512, 64)])
def test_linear(arch: str, count: int, inputs: int, outputs: int) -> None:
    wide, weight, bias = draw(count, inputs + 6), draw(outputs, inputs, seed=1), draw(outputs, seed=2)
    x, packed = wide[:, :inputs], gemm.pack(weight)
    close(gemm.linear(x, packed), x.float() @ weight.float().T)
    close(gemm.linear(x, packed, bias), x.float() @ weight.float().T + bias.float())
    assert torch.equal(gemm.unpack(packed), weight)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_row_does_not_depend_on_the_others(arch: str, count: int) -> None:
    x, packed = draw(count, 300), gemm.pack(draw(64, 300, seed=1))
    alone = torch.cat([gemm.linear(row[None], packed) for row in x])
    assert torch.equal(gemm.linear(x, packed, alike=True), alone)


@pytest.mark.parametrize("count", [1, 12, 30])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear(arch: str, count: int, activation: str) -> None:
    x, weight, bias = draw(count, 100), draw(128, 100, seed=1) / 10, draw(128, seed=2)
    gate, up = (x.float() @ weight.float().T + bias.float()).chunk(2, dim=-1)
    act = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    close(gemm.linear(x, gemm.pack(weight), bias, activation=activation), act * up)


@pytest.mark.parametrize("count", [1, 12, 30])
@pytest.mark.parametrize("inputs", [64, 700])
def test_int8_weights(arch: str, count: int, inputs: int) -> None:
    x = draw(count, inputs)
    weight = torch.randint(-127, 128, (64, inputs), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    scales = torch.linspace(0.001, 0.02, 64)
    whole = x.float() @ (weight.float() * scales[:, None]).T
    packed = gemm.pack(weight)
    close(gemm.linear(x, packed, scales=scales), whole)
    gate, up = whole.chunk(2, dim=-1)
    close(gemm.linear(x, packed, scales=scales, activation="silu"), F.silu(gate) * up)
    assert torch.equal(gemm.unpack(packed), weight)


@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.parametrize(("count", "width", "inner"), [(1, 32, 64), (13, 96, 32), (530, 64, 32)])
def test_experts(arch: str, count: int, width: int, inner: int, eight_bits: bool) -> None:
    """Seven rows, and two experts that no row goes to. A row alone gets the same result."""
    number, top_k = 7, 3
    draws = torch.Generator().manual_seed(4)
    x = draw(count, width + 6)[:, :width]
    matrices = [draw(number, 2 * inner, width, seed=1) / width**0.5, draw(number, width, inner, seed=2) / inner**0.5]
    ids = torch.stack([torch.randperm(number - 2, generator=draws)[:top_k] for _ in range(count)]).to(torch.int32)
    gates = torch.rand(count, top_k, generator=draws)
    scales = None
    if eight_bits:
        scales = tuple(weight.float().abs().amax(dim=-1) / 127 for weight in matrices)
        matrices = [
            (weight.float() / scale[..., None]).round().to(torch.int8)
            for weight, scale in zip(matrices, scales, strict=True)
        ]
    packed = [experts.pack(weight) for weight in matrices]
    assert all(torch.equal(experts.unpack(one), weight) for one, weight in zip(packed, matrices, strict=True))
    values = [weight.float() for weight in matrices]
    if scales is not None:
        values = [weight * scale[..., None] for weight, scale in zip(values, scales, strict=True)]
    biases = (draw(number, 2 * inner, seed=5), draw(number, width, seed=6)) if count == 13 else None
    wanted = torch.zeros(count, width)
    for place in range(top_k):
        chosen = ids[:, place].long()
        first, second = (weight[chosen] for weight in values)
        one, two = (0.0, 0.0) if biases is None else (bias[chosen].float() for bias in biases)
        gate, up = (torch.einsum("nd,nfd->nf", x.float(), first) + one).chunk(2, dim=-1)
        wanted += gates[:, place, None] * (torch.einsum("nf,ndf->nd", F.silu(gate) * up, second) + two)
    how = {"activation": "silu", "scales": scales, "biases": biases}
    close(experts.experts(x, *packed, ids, gates, **how), wanted)
    found = experts.experts(x, *packed, ids, gates, **how, alike=True)
    close(found, wanted)
    for row in (0, count - 1):
        one = slice(row, row + 1)
        assert torch.equal(experts.experts(x[one], *packed, ids[one], gates[one], **how), found[one])


def test_no_rows(arch: str) -> None:
    assert gemm.linear(draw(0, 64), gemm.pack(draw(32, 64))).shape == (0, 32)
    assert rows.rms_norm(draw(0, 64), draw(64), 1e-6).shape == (0, 64)


def test_what_packs() -> None:
    assert gemm.packs(draw(64, 10)) and not gemm.packs(draw(63, 10)) and not gemm.packs(draw(64, 11))
    assert not gemm.packs(draw(64, 10).float())
    assert experts.packs(draw(3, 64, 32)) and not experts.packs(draw(3, 64, 34)) and not experts.packs(draw(64, 32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [1, 16, 37, 1024])
def test_rms_norm(arch: str, width: int, dtype: torch.dtype) -> None:
    wide, residual = draw(21, width + 3), draw(21, width, seed=1)
    weight = draw(width, seed=2).to(dtype).mul_(1.001)  # which bfloat16 rounds away
    x = wide[:, :width]
    close(rows.rms_norm(x, weight, 1e-5), F.rms_norm(x.float(), (width,), weight.float(), 1e-5))
    total = (x.float() + residual.float()).to(torch.bfloat16)
    found = rows.rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(residual, total)
    close(found, F.rms_norm(total.float(), (width,), weight.float(), 1e-5))


@pytest.mark.parametrize("width", [1, 16, 37, 1024])
def test_gated(arch: str, width: int) -> None:
    x = draw(19, 2 * width) * 4
    gate, up = x.float().chunk(2, dim=-1)
    close(rows.gated(x, "silu"), F.silu(gate) * up)
    close(rows.gated(x, "gelu_tanh"), F.gelu(gate, approximate="tanh") * up)
    gate, up = (5 * x).float().chunk(2, dim=-1)
    low, high = gate.clamp(max=7), up.clamp(-7, 7)
    close(rows.gated(5 * x, "swigluoai"), low * torch.sigmoid(1.702 * low) * (high + 1))


def test_extreme_activations(arch: str) -> None:
    gate = torch.tensor([-1e38, -200.0, -80.0, 0.0, 80.0, 200.0, 1e38], dtype=torch.bfloat16)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    close(rows.gated(x, "silu"), F.silu(gate.float())[None])
    assert rows.gated(torch.full((1, 32), float("nan"), dtype=torch.bfloat16), "silu").isnan().all()
    assert rows.gated(torch.full((1, 32), float("nan"), dtype=torch.bfloat16), "swigluoai").isnan().all()


@pytest.mark.parametrize("dim", [16, 48, 64, 128])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_store(arch: str, dim: int, normed: bool) -> None:
    tokens, heads, kv_heads = 9, 4, 2
    qkv = draw(tokens, (heads + 2 * kv_heads) * dim)
    q, k, v = (part for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1))
    positions = torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(3))
    locations = torch.randperm(20, generator=torch.Generator().manual_seed(4))[:tokens]
    angles = torch.rand(50, dim // 2, generator=torch.Generator().manual_seed(5)) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    norms = (draw(dim, seed=6), draw(dim, seed=7), 1e-6) if normed else None
    cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
    wanted = []
    for x, weight in zip((q, k), norms[:2] if norms else (None, None), strict=True):
        turned = x.float().view(tokens, -1, dim)
        if weight is not None:
            turned = F.rms_norm(turned, (dim,), weight.float(), 1e-6)
        left, right = turned.chunk(2, dim=-1)
        wanted.append(torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).flatten(1))
    keys, values = (torch.zeros(20, kv_heads, dim, dtype=torch.bfloat16) for _ in range(2))
    v_before = v.clone()
    rows.rope_and_store(q, k, v, positions, cos_sin, norms, keys, values, locations)
    close(q, wanted[0])
    close(k, wanted[1])
    assert torch.equal(keys[locations].flatten(1), k) and torch.equal(values[locations].flatten(1), v_before)
    assert keys.count_nonzero(dim=(1, 2)).ne(0).sum() == tokens


EIGHT_BITS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""dtype -> its largest number."""


@pytest.mark.parametrize("dim", [16, 24, 64])
@pytest.mark.parametrize("stored", EIGHT_BITS)
def test_eight_bit_numbers_are_stored_as_torch_rounds_them(arch: str, stored: torch.dtype, dim: int) -> None:
    """Numbers of all sizes under scales; what is too large is the largest, and what is not finite NaN."""
    tokens, kv_heads, scales = 40, 3, (0.37, 1.9)
    size = torch.logspace(-9, 9, tokens)[:, None]
    qkv = (draw(tokens, 3 * kv_heads * dim) * size).to(torch.bfloat16)
    qkv[3, kv_heads * dim :: 2] = 3.3e38
    qkv[4, 2 * kv_heads * dim + 5] = float("nan")
    qkv[4, 2 * kv_heads * dim + 6] = float("-inf")
    q, k, v = qkv.chunk(3, dim=-1)
    turns = torch.cat((torch.ones(1, dim // 2), torch.zeros(1, dim // 2)), dim=-1)  # by no angle
    keys, values = (torch.zeros(50, kv_heads, dim).to(stored) for _ in range(2))
    places = torch.randperm(50, generator=torch.Generator().manual_seed(4))[:tokens]
    given = [x.clone() for x in (k, v)]
    rows.rope_and_store(q, k, v, torch.zeros(tokens, dtype=torch.int64), turns, None, keys, values, places, scales)
    largest = EIGHT_BITS[stored]
    for x, cache, scale in zip(given, (keys, values), scales, strict=True):
        wanted = (x.float() * (1 / scale)).clamp(-largest, largest).to(stored).float()
        wanted[~x.isfinite()] = torch.nan
        found = cache.float()[places].flatten(1)
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert torch.equal(found.isnan(), wanted.isnan())
    untouched = torch.ones(50, dtype=torch.bool).index_fill(0, places, False)
    assert not keys.float()[untouched].any() and not values.float()[untouched].any()


@pytest.mark.parametrize("stored", EIGHT_BITS)
def test_eight_bit_numbers_are_read_as_torch_reads_them(arch: str, stored: torch.dtype) -> None:
    """Each row has one key, so its answer is its value: all 256 there are, in 32 of a head at a time."""
    values = torch.arange(256, dtype=torch.uint8).view(stored).view(8, 1, 32)
    keys, table = torch.zeros(8, 1, 32).to(stored), torch.arange(8, dtype=torch.int32)[:, None]
    ones = np.ones(8, dtype=np.int64)
    plan = attention.AttentionRows.of(np.arange(8), ones, ones, 1)
    options = {"page_size": 1, "window": None, "scale": 0.1, "logit_cap": 0.0, "value_scale": 2.0}
    found = attention.attend(draw(8, 32), keys, values, table, plan, **options).float()
    wanted = values.float().flatten(1) * 2
    assert torch.equal(found.nan_to_num(7.0, 8.0, 9.0), wanted.masked_fill(wanted.isinf(), torch.nan).nan_to_num(7.0))


@pytest.mark.parametrize("width", [1, 15, 16, 100, 4099])
def test_greedy_tokens(arch: str, width: int) -> None:
    wide = draw(6, width + 5) - 9
    logits = wide[:, :width]
    first = logits.float().argmax(dim=-1)
    assert torch.equal(rows.greedy_tokens(logits), first)
    logits[1, width // 2 :] = 3.0
    logits[2, width - 1] = float("nan")
    logits[3, 0] = float("inf")
    logits[4, width // 2] = float("-inf")
    assert rows.greedy_tokens(logits).tolist() == [int(first[0]), width // 2, -1, -1, -1, int(first[5])]


def attention_reference(
    q: Tensor, keys: Tensor, values: Tensor, places: Tensor, *, window: int | None, scale: float, cap: float
) -> Tensor:
    """One row in float32, with a mask. places: KV slots of its keys; its queries are the last of them."""
    _, kv_heads, dim = keys.shape
    queries = q.view(len(q), -1, dim).float()
    k, v = (x[places].float().repeat_interleave(queries.shape[1] // kv_heads, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,lhd->hql", queries, k) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(len(places) - len(q), len(places))[:, None] - torch.arange(len(places))
    seen = (distance >= 0) & (distance < (window or len(places)))
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("hql,lhd->qhd", weights, v).flatten(1)


@pytest.mark.parametrize(
    ("dim", "heads"), [(32, (2, 2)), (64, (6, 2)), (64, (12, 1)), (96, (3, 3)), (128, (4, 2)), (256, (2, 1))]
)
@pytest.mark.parametrize(
    ("page_size", "window", "cap", "stored"),
    [
        (1, None, 0.0, None),
        (16, None, 5.0, None),
        (1, 40, 0.0, None),
        (16, 7, 0.0, None),
        (1, 40, 5.0, torch.float8_e4m3fn),
        (16, None, 0.0, torch.float8_e5m2),
    ],
)
def test_attention(
    arch: str,
    dim: int,
    heads: tuple[int, int],
    page_size: int,
    window: int | None,
    cap: float,
    stored: torch.dtype | None,
) -> None:
    slots, max_pages = 5, 320 // page_size
    pages = torch.randperm(slots * max_pages, generator=torch.Generator().manual_seed(1)) + 1
    table = pages.view(slots, max_pages).to(torch.int32)
    keys, values = (draw((slots * max_pages + 1) * page_size, heads[1], dim, seed=s) for s in (2, 3))
    if stored is not None:
        keys, values = keys.to(stored), values.to(stored)
    # decoding, a whole prompt, a chunk, a few tokens, one token in all
    ends, queries = np.array([300, 61, 290, 129, 1]), np.array([1, 61, 33, 2, 1])
    order = np.array([3, 1, 0, 4, 2])
    wide = draw(int(queries.sum()), heads[0] * dim + 64, seed=4)
    q = wide[:, : heads[0] * dim]
    plan = attention.AttentionRows.of(order, ends, queries, heads[0] // heads[1])
    found = attention.attend(
        q, keys, values, table, plan, page_size=page_size, window=window, scale=0.11, logit_cap=cap
    )
    first = 0
    for slot, end, count in zip(order.tolist(), ends.tolist(), queries.tolist(), strict=True):
        at = torch.arange(end)
        places = table[slot, at // page_size].long() * page_size + at % page_size
        own = q[first : first + count]
        wanted = attention_reference(own, keys, values, places, window=window, scale=0.11, cap=cap)
        close(found[first : first + count], wanted)
        first += count


@pytest.mark.parametrize("heads", [3, 16, 60])
def test_attention_over_latent_rows(arch: str, heads: int) -> None:
    """One key for all heads, whose beginning is the value."""
    dim, latent, pages = 160, 96, 20
    keys = draw((pages + 1) * 16, 1, dim, seed=2)
    table = (torch.randperm(pages, generator=torch.Generator().manual_seed(1)) + 1)[None].to(torch.int32)
    ends, queries = np.array([300]), np.array([5])
    q = draw(5, heads * dim, seed=4)
    plan = attention.AttentionRows.of(np.array([0]), ends, queries, heads)
    values = keys[..., :latent]
    found = attention.attend(q, keys, values, table, plan, page_size=16, window=None, scale=0.11, logit_cap=0.0)
    at = torch.arange(300)
    places = table[0, at // 16].long() * 16 + at % 16
    close(found, attention_reference(q, keys, values, places, window=None, scale=0.11, cap=0.0))


def test_attention_tells_what_is_not_finite(arch: str) -> None:
    keys, values = draw(40, 1, 64), draw(40, 1, 64, seed=1)
    keys[7, 0, 3] = float("nan")
    table = torch.arange(40, dtype=torch.int32)[None]
    for count in (1, 20):
        q = draw(count, 64, seed=2)
        plan = attention.AttentionRows.of(np.array([0]), np.array([30]), np.array([count]), 1)
        found = attention.attend(q, keys, values, table, plan, page_size=1, window=None, scale=0.1, logit_cap=0.0)
        assert found.isnan().any(dim=-1).all()


def test_threads_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= library.usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delenv("MYSGLANG_CPU_THREADS", raising=False)
    assert cpu_threads() is None
    monkeypatch.setenv("MYSGLANG_CPU_THREADS", "3")
    assert cpu_threads() == 3
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv("MYSGLANG_CPU_THREADS", wrong)
        with pytest.raises(ValueError, match="give a number of threads"):
            cpu_threads()


def test_callers_at_the_same_time() -> None:
    """A second caller at the same time computes alone. No caller waits for ever, and each gets its own result."""
    packed = gemm.pack(draw(4096, 512, seed=1))
    inputs = [draw(rows, 512, seed=rows) for rows in range(1, 9)]
    wanted = [gemm.linear(x, packed) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, right in zip(pool.map(lambda x: gemm.linear(x, packed), inputs), wanted, strict=True):
                assert torch.equal(found, right)


def test_a_forked_process_has_no_helpers_and_needs_none() -> None:
    x, packed = draw(1, 512), gemm.pack(draw(4096, 512, seed=1))
    wanted = gemm.linear(x, packed)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(0 if torch.equal(gemm.linear(x, packed), wanted) else 1)
    )
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0


@pytest.mark.parametrize("filters", [(), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p")])
@pytest.mark.parametrize("vocab", [1, 15, 512, 4099])
def test_draw_tokens(arch: str, vocab: int, filters: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(40, vocab + 3, generator=generator)[:, :vocab] * 4
    uniforms = torch.rand(40, generator=generator, dtype=torch.float64)
    temperature = torch.rand(40, generator=generator) + 0.3
    limits = {
        "top_k": torch.randint(1, vocab + 9, (40,), generator=generator).int(),
        "top_p": torch.rand(40, generator=generator),
        "min_p": torch.rand(40, generator=generator) / 9,
    }
    given = {name: limits[name] for name in filters}
    tokens = rows.draw_tokens(logits, uniforms, temperature, **given)

    weights = ((logits.double() - logits.double().amax(dim=1, keepdim=True)) / temperature.double()[:, None]).exp()
    ranked, ids = weights.sort(dim=1, descending=True, stable=True)
    stays = torch.arange(vocab) < given.get("top_k", torch.tensor(vocab + 9).expand(40))[:, None]
    if "top_p" in given:
        stays &= ranked.cumsum(dim=1) - ranked < given["top_p"].double()[:, None] * weights.sum(dim=1, keepdim=True)
    if "min_p" in given:
        stays &= ranked >= given["min_p"].double()[:, None]
    weights *= torch.zeros(weights.shape, dtype=torch.bool).scatter_(1, ids, stays)
    ends = weights.cumsum(dim=1)
    share = ends.gather(1, tokens[:, None])[:, 0]
    target = uniforms * ends[:, -1]
    # The drawn token's share holds the target, but for rounding at its ends.
    slack = 1e-5 * ends[:, -1]
    assert (weights.gather(1, tokens[:, None]) > 0).all()
    assert (share >= target - slack).all() and (
        share - weights.gather(1, tokens[:, None])[:, 0] <= target + slack
    ).all()


def test_draw_tokens_where_no_logit_is_finite(arch: str) -> None:
    logits = torch.randn(6, 700)
    logits[0], logits[1, 3], logits[2, 699] = -torch.inf, torch.nan, torch.inf
    limits = {"top_k": torch.full((6,), 5).int(), "top_p": torch.full((6,), 0.9), "min_p": torch.zeros(6)}
    numbers = torch.full((6,), 0.5, dtype=torch.float64), torch.ones(6)
    tokens = rows.draw_tokens(logits, *numbers, **limits)
    assert tokens[:3].tolist() == [0, 0, 0]
    assert torch.equal(
        tokens[3:],
        rows.draw_tokens(
            logits[3:], *(number[3:] for number in numbers), **{name: limit[3:] for name, limit in limits.items()}
        ),
    )
