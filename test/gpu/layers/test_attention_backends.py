"""Every attention backend on CUDA against the slow reference, on every story."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import (
    LATENT,
    PLAIN,
    SPECIALITIES,
    SPECS,
    STORIES,
    WITH_SINKS,
    MakeBackend,
    Step,
    check_shared_pages,
    check_story,
    common_spec,
    every_spec,
    every_story,
)
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention.factory import ChosenBackends, create_attention_backend
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend

needs_flashinfer = pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="no flashinfer")
pytestmark = pytest.mark.timeout(400)  # FlashInfer builds what was never built before

with_sinks = pytest.mark.parametrize(
    "spec",
    [*SPECS.values(), SPECIALITIES["window and sinks"], WITH_SINKS],
    ids=[*SPECS, "window and sinks", "sinks"],
)


@pytest.mark.parametrize("page_size", [1, 16])
@every_spec
@every_story
def test_triton(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    check_story(TritonBackend, story, spec, page_size=page_size, dtype=torch.bfloat16, device="cuda", tolerance=2e-2)


@every_story
def test_triton_float32(story: list[Step]) -> None:
    check_story(TritonBackend, story, PLAIN, page_size=4, device="cuda", tolerance=1e-4)


@pytest.mark.parametrize("head_dim", [8, 80])
@pytest.mark.parametrize("make", [TritonBackend, InvariantTritonBackend])
def test_heads_of_any_size(make: MakeBackend, head_dim: int) -> None:
    """Also of a size that is no power of two, and below the least of a tensor core's product."""
    spec = replace(PLAIN, head_dim=head_dim, scale=head_dim**-0.5)
    for name in ("chunks", "decode of many lengths"):
        check_story(make, STORIES[name], spec, page_size=4, dtype=torch.bfloat16, device="cuda", tolerance=2e-2)


@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@every_story
def test_triton_over_latent_rows(story: list[Step], dtype: torch.dtype, num_heads: int) -> None:
    """At the sizes of DeepSeek-V2-Lite and V3."""
    spec = replace(LATENT, num_heads=num_heads, head_dim=576, latent_dim=512, scale=192**-0.5)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
    check_story(TritonBackend, story, spec, page_size=16, dtype=dtype, device="cuda", tolerance=tolerance)


@every_story
def test_torch_native(story: list[Step]) -> None:
    check_story(TorchNativeBackend, story, PLAIN, page_size=4, dtype=torch.bfloat16, device="cuda", tolerance=2e-2)


@needs_flashinfer
@pytest.mark.parametrize("page_size", [1, 16])
@with_sinks
@every_story
def test_flashinfer(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend

    check_story(
        FlashInferBackend, story, spec, page_size=page_size, dtype=torch.bfloat16, device="cuda", tolerance=2e-2
    )


@needs_flashinfer
@every_story
def test_flashinfer_with_wide_heads(story: list[Step]) -> None:
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend

    spec = replace(PLAIN, num_heads=8, head_dim=128, scale=128**-0.5)
    check_story(FlashInferBackend, story, spec, page_size=1, dtype=torch.bfloat16, device="cuda", tolerance=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page_size", [1, 16])
@with_sinks
@every_story
def test_sgl_kernel(story: list[Step], spec: AttentionSpec, page_size: int, dtype: torch.dtype) -> None:
    chosen = ChosenBackends("triton", "sgl_kernel")
    check_story(
        lambda pool, table: create_attention_backend(chosen, pool, [table], [spec]),
        story,
        spec,
        page_size=page_size,
        dtype=dtype,
        device="cuda",
        tolerance=2e-2,
    )


@pytest.mark.parametrize("name", ["triton", "torch_native", pytest.param("flashinfer", marks=needs_flashinfer)])
def test_rows_that_share_pages_of_the_same_step(name: str) -> None:
    check_shared_pages(
        lambda pool, table: create_attention_backend(ChosenBackends(name, name), pool, [table], [PLAIN]),
        device="cuda",
        dtype=torch.bfloat16,
    )


@needs_flashinfer
@every_story
def test_runs_of_new_rows_beside_continued_ones(story: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    from mysglang.srt.layers.attention import prefill_runs
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend

    monkeypatch.setattr(prefill_runs, "WORTH_A_RUN", 2)
    check_story(FlashInferBackend, story, PLAIN, page_size=4, dtype=torch.bfloat16, device="cuda", tolerance=2e-2)


@needs_flashinfer
@pytest.mark.parametrize("page_size", [1, 16])
@common_spec
@every_story
def test_chunks_that_read_copies(
    story: list[Step], spec: AttentionSpec, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mysglang.srt.layers.attention import prefill_runs
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend

    monkeypatch.setattr(prefill_runs, "WORTH_A_RUN", 2)
    monkeypatch.setattr(prefill_runs, "WORTH_COPYING", 3)
    check_story(
        FlashInferBackend, story, spec, page_size=page_size, dtype=torch.bfloat16, device="cuda", tolerance=2e-2
    )
