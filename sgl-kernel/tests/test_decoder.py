"""The decode step against plain torch: random models of odd sizes, random pages, lengths on both sides of splits."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mysgl_kernel import decoder
from mysgl_kernel.decoder import SILU, DecoderTensors, DecodeStep, DoesNotFitError, GatedActivation, LayerTensors

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)


CLEAR_GAP = 0.03


@dataclass(frozen=True)
class Case:
    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    lens: tuple[int, ...]
    layers: int = 2
    bias: bool = False
    qk_norm: bool = False
    window: int = 0
    page_size: int = 1
    experts: int = 0
    chosen: int = 0
    renormalize: bool = False
    sinks: bool = False
    spaces: int = 1
    """With two, every other layer has no window, and pages of its own."""
    clamped: bool = False


CASES = [
    Case(64, 128, 2, 1, 64, 101, (1,)),
    Case(64, 128, 2, 2, 64, 101, (5,), bias=True),
    Case(256, 704, 4, 2, 64, 1003, (33,), qk_norm=True),
    Case(896, 4864, 14, 2, 64, 2049, (700,), bias=True),
    Case(1024, 3072, 16, 8, 128, 5000, (130, 1), qk_norm=True),
    Case(1024, 3072, 16, 8, 128, 5001, (1024, 17, 64, 65), qk_norm=True, page_size=16),
    Case(512, 1536, 8, 8, 128, 777, (1, 2, 3, 500, 90, 128, 129, 16), layers=3),
    Case(512, 1536, 8, 1, 128, 777, (3000, 1, 40), layers=3, bias=True),
    Case(512, 1024, 8, 2, 128, 777, (300, 100), window=64),
    Case(512, 1024, 8, 2, 64, 777, (5000,), window=1000, page_size=4),
    Case(4096, 14336, 32, 8, 128, 3001, (1300,)),
    Case(4096, 14336, 32, 8, 128, 3001, (100, 2000)),
    Case(4096, 14336, 32, 8, 128, 3001, (1, 200, 300, 257)),
    Case(64, 128, 2, 1, 64, 101, (1,), experts=4, chosen=1),
    Case(256, 192, 4, 2, 64, 1003, (33,), qk_norm=True, experts=12, chosen=3, renormalize=True, layers=3),
    Case(512, 704, 8, 2, 128, 777, (300,), bias=True, experts=256, chosen=16, page_size=4),
    Case(2048, 768, 32, 4, 128, 3001, (1000,), qk_norm=True, experts=128, chosen=8, renormalize=True, layers=4),
    Case(4096, 14336, 32, 8, 128, 3001, (500,), experts=8, chosen=2, renormalize=True, layers=1),
    Case(512, 1024, 8, 2, 64, 777, (300, 1, 70), sinks=True, window=64, spaces=2, page_size=4, layers=3),
    Case(512, 1536, 8, 1, 128, 777, (3000, 1), sinks=True, clamped=True, bias=True),
    Case(256, 192, 4, 2, 64, 1003, (33,), bias=True, experts=12, chosen=3, clamped=True, layers=3),
    Case(
        *(2880, 2880, 64, 8, 64, 3001, (1000,)),
        bias=True,
        experts=32,
        chosen=4,
        renormalize=True,
        sinks=True,
        window=128,
        spaces=2,
        clamped=True,
        layers=4,
    ),
]


def random_model(case: Case, seed: int) -> DecoderTensors:
    torch.manual_seed(seed)
    bf16 = {"dtype": torch.bfloat16, "device": "cuda"}

    def weight(outputs: int, inputs: int) -> Tensor:
        return torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).to(torch.bfloat16)

    def gain(size: int) -> Tensor:
        return (1 + 0.1 * torch.randn(size, device="cuda")).to(torch.bfloat16)

    def mlp() -> dict[str, Tensor | None]:
        if not case.experts:
            return {
                "gate_up": weight(2 * case.inner, case.hidden),
                "gate_up_bias": bias(2 * case.inner),
                "down": weight(case.hidden, case.inner),
                "down_bias": bias(case.hidden),
            }
        return {
            "router": weight(case.experts, case.hidden),
            "router_bias": bias(case.experts),
            "gate_up": torch.stack([weight(2 * case.inner, case.hidden) for _ in range(case.experts)]),
            "gate_up_bias": bias(case.experts, 2 * case.inner),
            "down": torch.stack([weight(case.hidden, case.inner) for _ in range(case.experts)]),
            "down_bias": bias(case.experts, case.hidden),
        }

    def bias(*shape: int) -> Tensor | None:
        return 0.3 * torch.randn(*shape, **bf16) if case.bias else None

    qkv = (case.q_heads + 2 * case.kv_heads) * case.head_dim
    pages = sum(-(-length // case.page_size) for length in case.lens) + 3
    # Spaces differ in their numbers of pages.
    caches = [((pages + 5 * space) * case.page_size, case.kv_heads, case.head_dim) for space in range(case.spaces)]
    layers = [
        LayerTensors(
            qkv=weight(qkv, case.hidden),
            qkv_bias=bias(qkv),
            o=weight(case.hidden, case.q_heads * case.head_dim),
            o_bias=bias(case.hidden),
            **mlp(),
            input_norm=gain(case.hidden),
            post_norm=gain(case.hidden),
            q_norm=gain(case.head_dim) if case.qk_norm else None,
            k_norm=gain(case.head_dim) if case.qk_norm else None,
            keys=torch.randn(caches[number % case.spaces], **bf16),
            values=torch.randn(caches[number % case.spaces], **bf16),
            window=case.window if number % case.spaces == 0 else 0,
            sinks=2 * torch.randn(case.q_heads, device="cuda") if case.sinks else None,
            space=number % case.spaces,
        )
        for number in range(case.layers)
    ]
    # Rows of a table are longer than any sequence; what stands behind its end must not be read as a page.
    tables = torch.full((case.spaces, len(case.lens) + 4, 8 + max(case.lens)), 1 << 28, dtype=torch.int32)
    for table in tables:
        free = torch.randperm(pages - 1) + 1
        for row, length in enumerate(case.lens):
            count = -(-length // case.page_size)
            table[row + 2, :count] = free[:count]
            free = free[count:]
    angles = torch.outer(torch.arange(max(case.lens)).float(), 1e4 ** -torch.linspace(0, 1, case.head_dim // 2))
    return DecoderTensors(
        layers=layers,
        embedding=torch.randn(case.vocab, case.hidden, **bf16),
        final_norm=gain(case.hidden),
        lm_head=weight(case.vocab, case.hidden),
        cos_sin=torch.cat((angles.cos(), angles.sin()), -1).cuda(),
        page_tables=tuple(tables.cuda()),
        page_size=case.page_size,
        q_heads=case.q_heads,
        eps=1e-5,
        qk_eps=1e-6,
        scale=1 / math.sqrt(case.head_dim),
        chosen=case.chosen,
        renormalize=case.renormalize,
        activation=GatedActivation(steepness=1.702, limit=0.7, lift=1.0) if case.clamped else SILU,
    )


def inputs_of(case: Case, model: DecoderTensors) -> tuple[Tensor, ...]:
    lens = torch.tensor(case.lens, dtype=torch.int32)
    slots = torch.arange(len(case.lens)) + 2
    positions = lens.long() - 1
    pages = [table.cpu()[slots, positions // case.page_size].long() for table in model.page_tables]
    ids = torch.randint(case.vocab, (len(case.lens),))
    locations = [each * case.page_size + positions % case.page_size for each in pages]
    return tuple(column.cuda() for column in (ids, positions, slots, lens, *locations))


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """float32, rounded once to bfloat16."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return bf16(x * scale * gain.float())


def bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return bf16(F.linear(x, weight.float(), None if bias is None else bias.float()))


def attend(case: Case, model: DecoderTensors, layer: LayerTensors, qkv: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Stores the new keys and values; float32 inside."""
    _, positions, slots, lens = inputs[:4]
    locations, table = inputs[4 + layer.space], model.page_tables[layer.space]
    rows, dim = len(lens), case.head_dim
    q, k, v = qkv.view(rows, -1, dim).split((case.q_heads, case.kv_heads, case.kv_heads), dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = norm(q, layer.q_norm, model.qk_eps), norm(k, layer.k_norm, model.qk_eps)
    cos, sin = model.cos_sin[positions].unsqueeze(1).chunk(2, -1)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return bf16(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))

    q = turn(q)
    layer.keys[locations] = turn(k).to(torch.bfloat16)
    layer.values[locations] = v.to(torch.bfloat16)
    out = []
    for row, length in enumerate(lens.tolist()):
        at = torch.arange(max(0, length - layer.window) if layer.window else 0, length, device="cuda")
        where = table[slots[row]][at // case.page_size] * case.page_size + at % case.page_size
        keys, values = (cache[where.long()].float() for cache in (layer.keys, layer.values))
        group = case.q_heads // case.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("hd,nhd->hn", q[row], keys).mul(model.scale)
        if layer.sinks is not None:
            scores = torch.cat((scores, layer.sinks[:, None]), 1)
        weights = scores.softmax(-1)[:, : len(at)]
        out.append(torch.einsum("hn,nhd->hd", weights, values).reshape(-1))
    return bf16(torch.stack(out))


def activate(model: DecoderTensors, both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    if model.activation == SILU:
        return bf16(F.silu(gate) * up)
    limit = model.activation.limit
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return bf16(gate * torch.sigmoid(model.activation.steepness * gate) * (up + model.activation.lift))


def mlp(x: Tensor, model: DecoderTensors, layer: LayerTensors) -> Tensor:
    return linear(activate(model, linear(x, layer.gate_up, layer.gate_up_bias)), layer.down, layer.down_bias)


def mixture(x: Tensor, model: DecoderTensors, layer: LayerTensors, gaps: list[float]) -> Tensor:
    """Computes one row. Adds to `gaps` how far the last chosen expert is ahead of the best that was not chosen."""
    assert layer.router is not None
    logits = linear(x, layer.router, layer.router_bias)[0]
    best = logits.topk(min(model.chosen + 1, len(logits))).values
    gaps.append(float((best[-2] - best[-1]) / logits.std()) if len(best) > model.chosen else math.inf)
    gates, experts = logits.softmax(-1).topk(model.chosen)
    if model.renormalize:
        gates = gates / gates.sum()
    out = torch.zeros_like(x)
    for gate, expert in zip(gates, experts.tolist(), strict=True):
        first, second = (None if bias is None else bias[expert] for bias in (layer.gate_up_bias, layer.down_bias))
        inner = activate(model, linear(x, layer.gate_up[expert], first))
        out += gate * F.linear(inner, layer.down[expert].float(), None if second is None else second.float())
    return bf16(out)


def reference(case: Case, model: DecoderTensors, inputs: tuple[Tensor, ...]) -> tuple[Tensor, float]:
    """Logits: float32 sums, rounded to bfloat16 where single kernels would. And the least gap of all choices of
    experts, in standard deviations of the router's logits.
    """
    gaps = [math.inf]
    residual = model.embedding[inputs[0]].float()
    for layer in model.layers:
        x = linear(norm(residual, layer.input_norm, model.eps), layer.qkv, layer.qkv_bias)
        x = linear(attend(case, model, layer, x, inputs), layer.o, layer.o_bias)
        residual = bf16(residual + x)
        x = norm(residual, layer.post_norm, model.eps)
        residual = bf16(residual + (mlp(x, model, layer) if layer.router is None else mixture(x, model, layer, gaps)))
    return linear(norm(residual, model.final_norm, model.eps), model.lm_head, None), min(gaps)


def clear_inputs(case: Case, model: DecoderTensors) -> tuple[tuple[Tensor, ...], Tensor]:
    """Returns inputs of which rounding chooses no other experts, and their logits."""
    for _ in range(200):
        inputs = inputs_of(case, model)
        logits, gap = reference(case, model, inputs)
        if gap > CLEAR_GAP:
            return inputs, logits
    raise AssertionError("experts are always near one another")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_the_plain_model(case: Case) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = random_model(case, seed=len(case.lens))
    step = DecodeStep(model, len(case.lens))
    for attempt in range(3):
        inputs, expected = clear_inputs(case, model)
        new = [inputs[4 + layer.space] for layer in model.layers]
        stored = [
            (layer.keys[at].clone(), layer.values[at].clone()) for layer, at in zip(model.layers, new, strict=True)
        ]
        for layer, at in zip(model.layers, new, strict=True):
            layer.keys[at] = layer.values[at] = float("nan")
        step.logits.fill_(float("nan"))
        logits, tokens = step.run(*inputs)
        torch.cuda.synchronize()
        error = (logits.float() - expected).norm(dim=1) / expected.norm(dim=1)
        assert error.max() < 1.5e-2, (attempt, error)
        assert torch.equal(tokens, logits.float().argmax(-1))
        for layer, at, (keys, values) in zip(model.layers, new, stored, strict=True):
            assert (layer.keys[at].float() - keys.float()).norm() < 2e-2 * keys.float().norm()
            assert (layer.values[at].float() - values.float()).norm() < 2e-2 * values.float().norm()


def test_is_the_same_in_every_run() -> None:
    case = CASES[5]
    model = random_model(case, seed=0)
    inputs = inputs_of(case, model)
    step = DecodeStep(model, len(case.lens))
    first = step.run(*inputs)[0].clone()
    for _ in range(50):
        assert torch.equal(step.run(*inputs)[0], first)


def test_replays_follow_the_contents_of_their_inputs() -> None:
    case = CASES[4]
    model = random_model(case, seed=0)
    step = DecodeStep(model, len(case.lens))
    inputs = inputs_of(case, model)
    step.run(*inputs)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step.run(*inputs)
    for seed in range(5):
        torch.manual_seed(seed)
        inputs[0].copy_(torch.randint(case.vocab, (len(case.lens),)))
        graph.replay()
        replayed = step.logits.clone()
        assert torch.equal(step.run(*inputs)[0], replayed)


def test_equal_logits_give_the_lowest_id_and_a_broken_row_none() -> None:
    case = Case(256, 704, 4, 2, 64, 1003, (33, 12), layers=1)
    model = random_model(case, seed=0)
    step = DecodeStep(model, 2)
    inputs = inputs_of(case, model)
    model.lm_head[:] = model.lm_head[0].clone()
    assert step.run(*inputs)[1].tolist() == [0, 0]
    model.embedding[inputs[0][1]] = float("nan")
    if inputs[0][0] != inputs[0][1]:
        assert step.run(*inputs)[1].tolist() == [0, -1]


def test_says_what_does_not_fit() -> None:
    case = Case(64, 128, 2, 1, 64, 101, (1,))
    model = random_model(case, seed=0)
    with pytest.raises(DoesNotFitError, match="9 rows"):
        DecodeStep(model, 9)
    with pytest.raises(DoesNotFitError, match="dimensions"):
        DecodeStep(random_model(Case(64, 128, 2, 1, 32, 101, (1,)), seed=0), 1)


def test_is_available() -> None:
    assert decoder.available()
