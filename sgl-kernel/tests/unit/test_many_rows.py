"""Products of many rows by tiles of AMX, emulated and the processor's own, against references in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.emulated_tiles import emulated_tiles
from mysgl_kernel.cpu import experts, gemm, library
from mysgl_kernel.cpu.toolchain import find_gxx

pytestmark = pytest.mark.skipif(find_gxx() is None, reason="no g++")

ACTIVATIONS = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "swigluoai": lambda gate, up: (up.clamp(-7, 7) + 1) * gate.clamp(max=7) * torch.sigmoid(1.702 * gate.clamp(max=7)),
}


@pytest.fixture(autouse=True, params=["emulated", "real"])
def tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Many rows are multiplied by tiles."""
    if request.param == "emulated":
        with emulated_tiles():
            yield
    elif "amx_bf16" in library.cpu_flags():
        yield
    else:
        pytest.skip("this processor has no AMX")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def close(found: Tensor, wanted: Tensor) -> None:
    """Within a rounding to bfloat16 of each value, and a little of the largest."""
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.float(), wanted, rtol=2**-8, atol=float(wanted.abs().max()) * 2**-9)


@pytest.mark.parametrize("count", [13, 16, 17, 32, 33, 49, 70])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 32), (32, 64), (34, 96), (62, 32), (200, 320), (1100, 288)])
def test_linear(count: int, inputs: int, outputs: int) -> None:
    """Rows, inputs and outputs that fill no tile, no part along K or no group, and those that do."""
    wide, weight, bias = draw(count, inputs + 6), draw(outputs, inputs, seed=1), draw(outputs, seed=2)
    x, packed = wide[:, :inputs], gemm.pack(weight)
    wanted = x.float() @ weight.float().T
    close(gemm.linear(x, packed), wanted)
    close(gemm.linear(x, packed, bias), wanted + bias.float())


def test_more_rows_than_are_multiplied_at_once() -> None:
    x, weight = draw(800, 40), draw(64, 40, seed=1)
    close(gemm.linear(x, gemm.pack(weight)), x.float() @ weight.float().T)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("count", "inputs", "outputs"), [(13, 100, 64), (40, 64, 704), (70, 2100, 192)])
def test_gated_linear(activation: str, count: int, inputs: int, outputs: int) -> None:
    x, weight, bias = draw(count, inputs), draw(outputs, inputs, seed=1) / inputs**0.5, draw(outputs, seed=2)
    gate, up = (x.float() @ weight.float().T + bias.float()).chunk(2, dim=-1)
    close(gemm.linear(x, gemm.pack(weight), bias, activation=activation), ACTIVATIONS[activation](gate, up))


@pytest.mark.parametrize(("count", "inputs"), [(13, 2), (33, 64), (70, 1100)])
def test_int8_weights(count: int, inputs: int) -> None:
    x, bias = draw(count, inputs), draw(320, seed=2)
    weight = torch.randint(-127, 128, (320, inputs), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    scales = torch.linspace(0.001, 0.02, 320) / inputs**0.5
    whole = x.float() @ (weight.float() * scales[:, None]).T + bias.float()
    packed = gemm.pack(weight)
    close(gemm.linear(x, packed, bias, scales=scales), whole)
    gate, up = whole.chunk(2, dim=-1)
    close(gemm.linear(x, packed, bias, scales=scales, activation="silu"), F.silu(gate) * up)


@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.parametrize(("count", "width", "inner"), [(60, 544, 32), (90, 1056, 192)])
def test_experts(count: int, width: int, inner: int, eight_bits: bool) -> None:
    """The first expert has every row, the second every third, the others few or none."""
    number = 7
    x, gates = draw(count, width), torch.rand(count, 2, generator=torch.Generator().manual_seed(3))
    weights = [draw(number, 2 * inner, width, seed=1) / width**0.5, draw(number, width, inner, seed=2) / inner**0.5]
    values = [weight.float() for weight in weights]
    others = 1 + torch.where(torch.arange(count) % 3 == 0, 0, torch.arange(count) % (number - 2))
    ids = torch.stack([torch.zeros(count, dtype=torch.int64), others], dim=1).to(torch.int32)
    scales = None
    if eight_bits:
        scales = tuple(value.abs().amax(dim=-1) / 127 for value in values)
        pairs = list(zip(values, scales, strict=True))
        weights = [(value / scale[..., None]).round().to(torch.int8) for value, scale in pairs]
        values = [weight.float() * scale[..., None] for weight, scale in zip(weights, scales, strict=True)]
    biases = (draw(number, 2 * inner, seed=5), draw(number, width, seed=6))
    wanted = torch.zeros(count, width)
    for place in range(2):
        chosen = ids[:, place].long()
        gate, up = (torch.einsum("nd,nfd->nf", x.float(), values[0][chosen]) + biases[0][chosen]).chunk(2, dim=-1)
        down = torch.einsum("nf,ndf->nd", F.silu(gate) * up, values[1][chosen]) + biases[1][chosen]
        wanted += gates[:, place, None] * down
    packed = [experts.pack(weight) for weight in weights]
    how = {"activation": "silu", "scales": scales, "biases": biases}
    found = experts.experts(x, *packed, ids, gates, **how)
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))
    alike = experts.experts(x, *packed, ids, gates, **how, alike=True)
    if width > 1000:  # few roundings of short sums tell orders apart
        assert not torch.equal(found, alike), "tiles sum in another order"
    alone = [experts.experts(x[[i]], *packed, ids[[i]], gates[[i]], **how) for i in range(0, count, 7)]
    assert torch.equal(alike[::7], torch.cat(alone))


def test_rows_alike() -> None:
    """Few rows, and rows that must be alike, do not take tiles."""
    # Sums of so many values that some are rounded otherwise in another order, on every processor.
    x, packed = draw(70, 12000), gemm.pack(draw(96, 12000, seed=1))
    alone = torch.cat([gemm.linear(row[None], packed) for row in x])
    assert torch.equal(gemm.linear(x, packed, alike=True), alone)
    assert torch.equal(gemm.linear(x[:8], packed), alone[:8])
    assert not torch.equal(gemm.linear(x, packed), alone), "tiles sum in another order"


@pytest.mark.parametrize("inputs", [2, 30, 34, 1058])
def test_what_is_no_number_reaches_nothing_else(inputs: int) -> None:
    """Neither from another row, nor from the panel behind one whose lines fill no tile."""
    x, weight = draw(40, inputs), draw(96, inputs, seed=1)
    wanted = x.float() @ weight.float().T
    x[[3, 39]], weight[32:64] = torch.nan, torch.inf
    found = gemm.linear(x, gemm.pack(weight))
    assert found[[3, 39]].isnan().all() and not found[:, 32:64].isfinite().any()
    rows = torch.tensor([row for row in range(40) if row not in (3, 39)])
    for columns in (slice(0, 32), slice(64, 96)):
        close(found[rows, columns], wanted[rows, columns])


def test_a_panel_does_not_depend_on_its_group() -> None:
    """Threads take groups of another size where there are more of them."""
    x, weight = draw(50, 1200), draw(320, 1200, seed=1)
    whole = gemm.linear(x, gemm.pack(weight))
    parts = [gemm.linear(x, gemm.pack(part)) for part in weight.split(64)]
    assert torch.equal(whole, torch.cat(parts, dim=1))
