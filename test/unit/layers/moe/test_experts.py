"""Experts loaded one by one, split over ranks, and brought back to what was loaded."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.thread_group import ThreadGroup, run_on_ranks
from mysglang.srt.distributed.groups import SoloGroup
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.moe.experts import MixtureOfExperts
from mysglang.srt.layers.moe.parameter import ExpertsParameter, FusedExpertsParameter, FusedLayout
from mysglang.srt.layers.moe.router import Routing
from mysglang.srt.layers.parameter import Section

EXPERTS, HIDDEN, INNER = 5, 32, 64
ROUTING = Routing(kind="softmax", top_k=2, renormalize=True)

DRAW = torch.Generator().manual_seed(0)
GATE = torch.randn(EXPERTS, HIDDEN, generator=DRAW)
PARTS = {
    name: [torch.randn(*shape, generator=DRAW) * 0.2 for _ in range(EXPERTS)]
    for name, shape in {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}.items()
}
X = torch.randn(9, HIDDEN, generator=DRAW)


def mixture(tp: ThreadGroup | SoloGroup, dtype: torch.dtype = torch.float32) -> MixtureOfExperts:
    """Loaded as from a checkpoint, the last expert first."""
    context = LayerContext(dtype=dtype, tp=tp, prefix="layers.0.mlp")
    layer = MixtureOfExperts(HIDDEN, EXPERTS, INNER, "silu", ROUTING, context=context)
    layer.gate.weight.load(GATE)
    for expert in reversed(range(EXPERTS)):
        layer.experts.w13_weight.load(PARTS["up"][expert], 2 * expert + 1)
        layer.experts.w13_weight.load(PARTS["gate"][expert], 2 * expert)
        layer.experts.w2_weight.load(PARTS["down"][expert], expert)
    return layer


def expected() -> Tensor:
    gates, ids = (X @ GATE.T).softmax(dim=-1).topk(2, dim=-1)
    out = torch.zeros_like(X)
    for row in range(len(X)):
        for expert, gate in zip(ids[row].tolist(), gates[row] / gates[row].sum(), strict=True):
            inner = F.silu(PARTS["gate"][expert] @ X[row]) * (PARTS["up"][expert] @ X[row])
            out[row] += gate * (PARTS["down"][expert] @ inner)
    return out


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_have_a_part_of_each_expert(size: int) -> None:
    for out in run_on_ranks(size, lambda tp: mixture(tp)(X)):
        torch.testing.assert_close(out, expected(), rtol=1e-4, atol=1e-5)


def test_a_rank_reads_what_it_loaded() -> None:
    def work(tp: ThreadGroup) -> tuple[Tensor, Tensor]:
        experts = mixture(tp).experts
        return experts.w13_weight.read(2 * 3 + 1), experts.w2_weight.read(3)

    ups, downs = zip(*run_on_ranks(2, work), strict=True)
    assert torch.equal(torch.cat(ups), PARTS["up"][3]) and torch.equal(torch.cat(downs, dim=1), PARTS["down"][3])


def test_all_experts_in_one_tensor() -> None:
    parts = (Section(4, 2, 2), Section(4, 2, 2))
    parameter = ExpertsParameter(3, (4, 5), parts, dtype=torch.float32)
    whole = torch.arange(3 * 8 * 5.0).view(3, 8, 5)
    parameter.load(whole)
    assert torch.equal(parameter.data, torch.cat((whole[:, 2:4], whole[:, 6:8]), dim=1))
    assert torch.equal(parameter.read(3), whole[1, 6:8])
    copy = parameter.filled(parameter.data.clone())
    assert type(copy) is ExpertsParameter and torch.equal(copy.read(3), whole[1, 6:8])
    assert parameter.without_memory().is_meta
    for wrong in (whole[:2], whole[0], whole[:, :6]):
        with pytest.raises(ConfigError, match="has shape"):
            parameter.load(wrong)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_checkpoint_with_one_tensor_for_all_experts(transposed: bool, interleaved: bool) -> None:
    """In an order of its own: each rank has its rows of gate and of up, and reads them back in that order."""
    fused = FusedLayout(transposed=transposed, interleaved=interleaved)
    gate, up = torch.randn(2, 3, 8, 5, generator=DRAW)
    whole = torch.stack((gate, up), dim=2).flatten(1, 2) if interleaved else torch.cat((gate, up), dim=1)
    down = torch.randn(3, 5, 8, generator=DRAW)
    stored, stored_down = (x.transpose(1, 2) if transposed else x for x in (whole, down))
    mine = Section(8, 4, 4)
    first = FusedExpertsParameter(3, (8, 5), (mine, mine), dtype=torch.float32, fused=fused)
    second = FusedExpertsParameter(3, (5, 4), (mine,), dim=1, dtype=torch.float32, fused=fused)
    bias = FusedExpertsParameter(3, (8,), (mine, mine), dtype=torch.float32, fused=fused)
    first.load(stored)
    second.load(stored_down)
    bias.load(whole[..., 0])
    assert torch.equal(first.data, torch.cat((gate[:, 4:], up[:, 4:]), dim=1))
    assert torch.equal(second.data, down[..., 4:]) and torch.equal(bias.data, first.data[..., 0])
    first.fit(stored.to("meta"))
    assert len(first.sections) == 1 and not first.without_memory().read().numel() - first.numel()
    own = FusedExpertsParameter(3, (16, 5), (Section(8, 0, 8),) * 2, dtype=torch.float32, fused=fused)
    own.load(stored)
    assert torch.equal(own.read(), stored) and torch.equal(own.filled(own.data.clone()).read(0), stored)
    with pytest.raises(ConfigError, match=rf"the model needs \[{', '.join(map(str, stored.shape))}\]"):
        own.load(stored[:, :4])


@pytest.mark.parametrize(("section", "shape"), [(3, [INNER, HIDDEN + 1]), (0, [INNER])])
def test_a_wrong_shape_is_told_as_that_of_one_expert(section: int, shape: list[int]) -> None:
    layer = mixture(SoloGroup())
    with pytest.raises(ConfigError, match=rf"the model needs \[{INNER}, {HIDDEN}\]"):
        layer.experts.w13_weight.load(torch.zeros(shape), section)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_can_be_loaded_again(dtype: torch.dtype) -> None:
    """The device's form of the weights keeps their values, and returns them."""
    experts = mixture(SoloGroup(), dtype).experts
    layouts = {name: value.without_memory() for name, value in experts.named_parameters()}
    loaded = {name: value.data.clone() for name, value in experts.named_parameters()}
    experts.process_weights_after_loading()
    for name, values in loaded.items():
        assert torch.equal(experts.values_of(name), values)
    experts.reopen_weights(layouts)
    experts.w2_weight.load(PARTS["down"][0], 4)
    assert torch.equal(experts.w2_weight.read(4), PARTS["down"][0].to(dtype))
    assert torch.equal(experts.w2_weight.read(3), loaded["w2_weight"][3])
    assert torch.equal(experts.w13_weight, loaded["w13_weight"])


def test_rows_that_do_not_count_ask_for_no_expert_of_their_own() -> None:
    """They have the experts of the first row, and the others what they have without them."""
    layer, asked = mixture(SoloGroup()), list[Tensor]()
    layer.experts.register_forward_pre_hook(lambda _, given: asked.append(given[1]))
    plain = layer(X)
    torch.testing.assert_close(layer(X, torch.tensor([4], dtype=torch.int32))[:4], plain[:4])
    every, counted = asked
    assert torch.equal(counted[:4], every[:4]) and (counted[4:] == every[0]).all()
    assert (every[4:] != every[0]).any()
