"""Every backend of a CPU, and Triton's interpreted, on pages of their own for each window: as on one pool."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import PLAIN, WITH_SINKS
from fixtures.captured_steps import CpuPrompts
from fixtures.space_attention import check_traffic
from fixtures.triton_on_cpu import run_interpreted
from mysgl_kernel.cpu import attention
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention.cpu_backend import CpuBackend
from mysglang.srt.layers.attention.factory import ChosenBackends

# Without a prefix cache, the pages that rows leave behind are free at once.
TRITON = """
from dataclasses import replace
from fixtures.attention_cases import PLAIN
from fixtures.space_attention import check_traffic
from mysglang.srt.layers.attention.factory import ChosenBackends
options = {"steps": 9, "longest": 40, "windows": (5,), "cache": "chunk", "captured": True}
for name, cap in (("triton", 0.0), ("invariant_triton", 3.0)):
    small = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16, logit_cap=cap)
    check_traffic(ChosenBackends(name, name), page_size=4, plain=small, **options)
# Prompts of a backend that captures none, which Triton's captures stand in for, beside decoding rows too.
from mysglang.srt.layers.attention import captured_prompts, factory
factory.BACKENDS["flashinfer"] = factory.BACKENDS["torch_native"]
opened = captured_prompts.OpenedPrompts.begin_step
calls = []
captured_prompts.OpenedPrompts.begin_step = lambda self, batch: calls.append(batch) or opened(self, batch)
small = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16, logit_cap=3.0)
check_traffic(ChosenBackends("flashinfer", "triton"), page_size=4, plain=small, tolerance=1e-4, **options)
assert calls
print("all agree")
"""


CAPPED = replace(PLAIN, logit_cap=3.0)
"""Scores are capped as in Gemma 2: the content of free pages must not get through the cap either."""
SIZES: dict[str, int] = {"steps": 30, "longest": 64}
"""Enough for rows that come, share pages, decode beyond both windows and go. The tests on a GPU take more of both: of
longer rows fewer would end in as many steps."""


@pytest.mark.parametrize(("page_size", "spec"), [(1, PLAIN), (16, PLAIN), (4, CAPPED)])
@pytest.mark.parametrize("name", ["torch_native", "invariant_torch"])
def test_on_torch(name: str, page_size: int, spec: AttentionSpec) -> None:
    torch.set_num_threads(1)
    check_traffic(ChosenBackends(name, name), page_size=page_size, plain=spec, **SIZES)


@pytest.mark.parametrize("stored", LARGEST)
@pytest.mark.parametrize("name", ["torch_native", "invariant_torch"])
def test_pages_of_eight_bit_numbers(name: str, stored: torch.dtype) -> None:
    torch.set_num_threads(1)
    check_traffic(ChosenBackends(name, name), page_size=4, plain=CAPPED, stored=stored, **SIZES)


@pytest.mark.skipif(not attention.available(), reason="no g++")
@pytest.mark.parametrize(("page_size", "spec"), [(1, PLAIN), (16, PLAIN), (16, CAPPED)])
@pytest.mark.parametrize("name", ["cpu", "invariant_cpu"])
def test_on_the_cpu(name: str, page_size: int, spec: AttentionSpec) -> None:
    check_traffic(ChosenBackends(name, name), page_size=page_size, plain=spec, dtype=torch.bfloat16, **SIZES)


@pytest.mark.parametrize(
    ("page_size", "captured", "spec"), [(1, False, PLAIN), (4, True, PLAIN), (4, True, WITH_SINKS)]
)
def test_split_between_two(page_size: int, captured: bool, spec: AttentionSpec) -> None:
    """Each with plans of its own, which go with the upload of captured steps."""
    names = ChosenBackends("torch_native", "sgl_kernel")
    check_traffic(names, page_size=page_size, plain=spec, captured=captured, tolerance=1e-5, **SIZES)


@pytest.mark.skipif(not attention.available(), reason="no g++")
def test_captured_prompts_beside_decoding_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each space with the captures of its backend, and with the sinks of each layer."""
    captured: list[CpuPrompts] = []

    def capture(self: CpuBackend, specs: Sequence[AttentionSpec]) -> CpuPrompts:
        captured.append(CpuPrompts())
        return captured[-1]

    monkeypatch.setattr(CpuBackend, "prompt_capture", capture, raising=False)
    check_traffic(
        ChosenBackends("cpu", "sgl_kernel"),
        page_size=16,
        plain=WITH_SINKS,
        dtype=torch.bfloat16,
        captured=True,
        tolerance=2e-2,
        **SIZES,
    )
    assert captured


def test_on_triton() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TRITON).strip() == "all agree"
