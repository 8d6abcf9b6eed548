"""Routers choose the experts that transformers chooses, with the same gates."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV3Config, Ernie4_5_MoeConfig, GptOssConfig, PhimoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.moe.router import Router, Routing

SIZES = {"hidden_size": 32, "n_routed_experts": 24, "num_experts_per_tok": 4, "num_attention_heads": 4}
GROUPS = {"n_group": 6, "topk_group": 3, "routed_scaling_factor": 1.7}


def second(**keys: Any) -> tuple[torch.nn.Module, Routing]:
    theirs = DeepseekV2TopkRouter(DeepseekV2Config(**SIZES, **GROUPS, **keys))
    grouped = theirs.topk_method == "group_limited_greedy"
    routing = Routing(
        kind="softmax",
        top_k=4,
        renormalize=False,
        groups=6 if grouped else 1,
        kept_groups=3 if grouped else 1,
        scale=1.7,
        float32=True,
    )
    return theirs, routing


def third(**keys: Any) -> tuple[torch.nn.Module, Routing]:
    theirs = DeepseekV3TopkRouter(DeepseekV3Config(**{**SIZES, **GROUPS, **keys}))
    routing = Routing(
        kind="sigmoid",
        top_k=4,
        renormalize=theirs.norm_topk_prob,
        groups=theirs.num_group,
        kept_groups=theirs.topk_group,
        scale=1.7,
        float32=True,
        corrected=True,
    )
    return theirs, routing


def gpt_oss() -> tuple[torch.nn.Module, Routing]:
    config = GptOssConfig(hidden_size=32, num_local_experts=24, num_experts_per_tok=4, num_attention_heads=4)
    return GptOssTopKRouter(config), Routing(kind="softmax", top_k=4, renormalize=True, bias=True)


def ernie() -> tuple[torch.nn.Module, Routing]:
    theirs = Ernie4_5_MoeTopKRouter(Ernie4_5_MoeConfig(hidden_size=32, moe_num_experts=24, moe_k=4, moe_norm_min=0.2))
    # Where the tests look for it, as their other routers have it.
    theirs.e_score_correction_bias = theirs.moe_statics.e_score_correction_bias
    return theirs, Routing(
        kind="softmax", top_k=4, renormalize=True, float32=True, corrected=True, corrections_in_row=True, least_sum=0.2
    )


def phimoe() -> tuple[torch.nn.Module, Routing]:
    """A bound that leaves out some of the others, and seldom all."""
    config = PhimoeConfig(hidden_size=32, num_local_experts=24, router_jitter_noise=0.2)
    theirs = PhimoeTopKRouter(config).eval()
    return theirs, Routing(kind="sparsemixer", top_k=2, renormalize=False, jitter=0.2)


PAIRS = {
    "of all": second(topk_method="greedy"),
    "in groups": second(topk_method="group_limited_greedy"),
    "scored": third(),
    "with a bias": gpt_oss(),
    "corrected, of all": ernie(),
    "one after the other": phimoe(),
    "scored, one group": third(n_group=1, topk_group=1, norm_topk_prob=False),
}


# In bfloat16 transformers also compares the distances of sparsemixer in that, and rounds some to the other side.
CASES = [(name, dtype) for name in PAIRS for dtype in (torch.float32, torch.bfloat16)]
CASES.remove(("one after the other", torch.bfloat16))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_as_transformers(name: str, dtype: torch.dtype) -> None:
    theirs, routing = PAIRS[name]
    torch.manual_seed(0)
    ours = Router(32, 24, routing, LayerContext(dtype=dtype))
    theirs.weight.data = torch.randn(24, 32).to(dtype)
    ours.weight.load(theirs.weight.data)
    correction = torch.randn(24) * 0.3
    if ours.e_score_correction_bias is not None:
        correction = correction.view(ours.e_score_correction_bias.shape)
        theirs.e_score_correction_bias.data.copy_(correction)
        ours.e_score_correction_bias.load(correction)
    if ours.bias is not None:
        theirs.bias.data = torch.randn(24).to(dtype)
        ours.bias.load(theirs.bias.data)
    x = torch.randn(300, 32).to(dtype)
    with torch.no_grad():
        _, their_gates, their_ids = theirs(x)
        ids, gates = ours.route(x)
    assert ids.dtype == torch.int32 and gates.dtype == torch.float32
    by_expert(ids, gates, their_ids, their_gates)


def by_expert(ids: Tensor, gates: Tensor, their_ids: Tensor, their_gates: Tensor) -> None:
    """The same experts, in any order, with the same gates, as far as theirs are exact."""
    order, their_order = ids.argsort(dim=-1), their_ids.argsort(dim=-1)
    assert torch.equal(ids.gather(1, order).long(), their_ids.gather(1, their_order))
    torch.testing.assert_close(gates.gather(1, order).to(their_gates.dtype), their_gates.gather(1, their_order))


def test_the_correction_is_for_the_choice_alone() -> None:
    """An expert that is lifted to the first place keeps the gate of its score."""
    router = Router(
        4, 3, Routing(kind="sigmoid", top_k=1, renormalize=False, corrected=True), LayerContext(dtype=torch.float32)
    )
    router.weight.load(torch.eye(3, 4))
    assert router.e_score_correction_bias is not None
    router.e_score_correction_bias.load(torch.tensor([0.0, 0.0, 5.0]))
    ids, gates = router.route(torch.tensor([[3.0, 0.0, -1.0, 0.0]]))
    assert ids.tolist() == [[2]]
    assert float(gates) == pytest.approx(float(torch.tensor(-1.0).sigmoid()))


def test_a_float32_weight_with_the_numbers_of_bfloat16_is_kept_as_these_too() -> None:
    """Until it is loaded again, and only if none of its numbers has more bits."""
    routing = Routing(kind="softmax", top_k=1, renormalize=False, float32=True)
    router = Router(8, 3, routing, LayerContext(dtype=torch.bfloat16))
    layouts = {"weight": router.weight.without_memory()}
    values = torch.randn(3, 8).bfloat16()
    router.weight.load(values.float())
    assert router.short is None
    router.process_weights_after_loading()
    assert router.short is not None and torch.equal(router.short, values)
    router.reopen_weights(layouts)
    assert router.short is None
    router.weight.load(values.float() * (1 + 2**-12))
    router.process_weights_after_loading()
    assert router.short is None
