"""Layers with windows on pages of their own, on every backend of CUDA: as on one pool, eagerly and through the buffers
of captured steps, prompts among them. Free pages hold NaN."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import PLAIN, WITH_SINKS
from fixtures.space_attention import check_traffic
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention.factory import ChosenBackends

pytestmark = pytest.mark.timeout(400)  # FlashInfer builds what was never built before

NAMES = [ChosenBackends("triton", "triton"), ChosenBackends("invariant_triton", "invariant_triton")]
NAMES += [ChosenBackends("triton", "sgl_kernel")] * (importlib.util.find_spec("mysgl_kernel") is not None)
if importlib.util.find_spec("flashinfer") is not None:
    NAMES += [ChosenBackends("flashinfer", "flashinfer"), ChosenBackends("flashinfer", "sgl_kernel")]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("plain", [PLAIN, replace(PLAIN, logit_cap=3.0), WITH_SINKS], ids=["plain", "cap", "sinks"])
@pytest.mark.parametrize("names", NAMES, ids=str)
def test_as_on_one_pool(
    names: ChosenBackends, page_size: int, cache: str, captured: bool, plain: AttentionSpec
) -> None:
    check_traffic(
        names,
        page_size=page_size,
        plain=plain,
        cache=cache,  # type: ignore[arg-type]
        dtype=torch.bfloat16,
        device="cuda",
        tolerance=2e-2,
        captured=captured,
    )
