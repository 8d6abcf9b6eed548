"""Ops on a CPU compute on the device of their arguments, whatever torch's default device is.

A model that is made for a GPU tries some of them on the CPU, while torch makes new tensors on the GPU. A kernel of ours
that then wrote into such a tensor ended the process.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.op_cases import OPS, clone, tensors
from fixtures.sampling_cases import random_draws
from mysglang.srt.kernels.experts import sigmoid_scores
from mysglang.srt.kernels.op import Numerics, Op, use_ops
from mysglang.srt.kernels.sampling import draw_tokens, greedy_tokens, most_likely

SAMPLING: dict[str, tuple[Op[..., Any], tuple[Any, ...]]] = {
    "scores": (sigmoid_scores, (random_draws(0).logits,)),
    "likeliest tokens": (greedy_tokens, (random_draws(0).logits,)),
    "lists of likely tokens": (most_likely, (random_draws(0).logits, 3)),
    "drawn tokens": (draw_tokens, random_draws(0).arguments()),
    "drawn tokens, filtered": (draw_tokens, random_draws(0, k=True, p=True, m=True).arguments()),
}
"""Ops that are not in `OPS`, with their arguments."""


@pytest.fixture(params=["fastest", "invariant"], autouse=True)
def numerics(request: pytest.FixtureRequest) -> Iterator[Numerics]:
    use_ops(request.param)
    yield request.param
    use_ops("fastest")


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, same in zip(found, expected, strict=True):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one, same, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPS)
def test_ops_of_layers(name: str, dtype: torch.dtype) -> None:
    op, make = OPS[name]
    torch.manual_seed(0)
    arguments = make("cpu", dtype)
    twins = [clone(argument) for argument in arguments]
    compute = op.choose("cpu")
    with torch.device("meta"):
        found = compute(*arguments)
    check([*tensors(found), *tensors(arguments)], [*tensors(compute(*twins)), *tensors(twins)])


@pytest.mark.parametrize("name", SAMPLING)
def test_ops_of_samplers(name: str) -> None:
    op, arguments = SAMPLING[name]
    with torch.device("meta"):
        found = op(*arguments)
    check(tensors(found), tensors(op(*arguments)))
