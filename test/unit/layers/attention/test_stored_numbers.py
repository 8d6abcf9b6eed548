"""Every backend that runs here over pages of eight-bit numbers: as the reference does over what such numbers keep."""

import pytest
import torch

from fixtures.attention_cases import (
    MIXED,
    PLAIN,
    SPECS,
    STORIES,
    MakeBackend,
    Step,
    check_story,
    every_story,
)
from fixtures.invariant_attention import SCALES, check_bits
from fixtures.triton_on_cpu import run_interpreted
from mysgl_kernel.cpu import attention
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention import factory
from mysglang.srt.layers.attention.cpu_backend import CpuBackend, make_invariant
from mysglang.srt.layers.attention.factory import AskedBackends, ChosenBackends, choose_backends
from mysglang.srt.layers.attention.invariant_torch import InvariantTorchBackend
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.base import KvPool

E4M3, E5M2 = LARGEST
SHAPES = {name: SPECS[name] for name in ("grouped heads", "window and cap")}

TRITON = """
from dataclasses import replace
from fixtures.attention_cases import PLAIN, STORIES, check_story
from fixtures.invariant_attention import SCALES, check_bits
from mysglang.srt.kernels.cuda import invariant_cut
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend
invariant_cut.SPAN = 64
small = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16)
windowed = replace(small, window=5, logit_cap=3.0)
for backend in (TritonBackend, InvariantTritonBackend):
    for stored, spec, story, page_size in zip(LARGEST, (small, windowed), ("prompt then decode", "chunks"), (1, 4)):
        pages = dict(page_size=page_size, stored=stored, scales=SCALES)
        check_story(backend, STORIES[story], spec, tolerance=1e-4, **pages)
for stored in LARGEST:
    check_bits(InvariantTritonBackend, small, length=70, single_from=66, chunks=(17,), page_sizes=(4,), stored=stored)
print("all agree")
"""


@pytest.mark.parametrize(("stored", "page_size"), [*zip(LARGEST, (1, 16), strict=True)])
@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("make", [TorchNativeBackend, InvariantTorchBackend])
@every_story
def test_torch(story: list[Step], make: MakeBackend, spec: AttentionSpec, stored: torch.dtype, page_size: int) -> None:
    torch.set_num_threads(1)
    check_story(make, story, spec, page_size=page_size, stored=stored, scales=SCALES)


@pytest.mark.skipif(not attention.available(), reason="no g++")
@pytest.mark.parametrize(("stored", "page_size"), [*zip(LARGEST, (1, 16), strict=True)])
@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("make", [CpuBackend, make_invariant])
@every_story
def test_our_own_kernel(
    story: list[Step], make: MakeBackend, spec: AttentionSpec, stored: torch.dtype, page_size: int
) -> None:
    pages = {"page_size": page_size, "stored": stored, "scales": SCALES}
    check_story(make, story, spec, dtype=torch.bfloat16, tolerance=2e-2, **pages)  # type: ignore[arg-type]


@pytest.mark.skipif(not attention.available(), reason="no g++")
@pytest.mark.parametrize("stored", LARGEST)
def test_the_same_bits_by_our_own_kernel(stored: torch.dtype) -> None:
    check_bits(make_invariant, PLAIN, length=150, single_from=140, dtype=torch.bfloat16, stored=stored)


@pytest.mark.parametrize("make", [TorchNativeBackend, InvariantTorchBackend])
def test_pages_of_bfloat16_below_float32(make: MakeBackend) -> None:
    check_story(make, MIXED, PLAIN, page_size=4, stored=torch.bfloat16)


@pytest.mark.parametrize("stored", LARGEST)
def test_the_same_bits_whole_in_chunks_and_token_by_token(stored: torch.dtype) -> None:
    torch.set_num_threads(1)
    check_bits(InvariantTorchBackend, PLAIN, length=150, single_from=140, stored=stored)


def test_triton_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TRITON).strip() == "all agree"


def test_a_backend_that_cannot_read_them_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(factory.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(factory, "_kernels_run", lambda dims, dtype: True)
    available, half = ("sgl_kernel", "flashinfer", "triton"), torch.bfloat16
    with caplog.at_level("INFO"):
        found = choose_backends(AskedBackends(), available, [PLAIN], half, E4M3)
    assert found == ChosenBackends("flashinfer", "flashinfer")
    assert (
        "using flashinfer instead of sgl_kernel, because it does not read KV pages of torch.float8_e4m3fn"
        in caplog.text
    )
    with pytest.raises(ConfigError, match="sgl_kernel: it does not read KV pages"):
        choose_backends(AskedBackends(decode="sgl_kernel"), available, [PLAIN], half, E5M2)
    with pytest.raises(ConfigError, match="flashinfer: it does not read KV pages"):
        choose_backends(AskedBackends("flashinfer"), available, [PLAIN], torch.float16, half)
    assert choose_backends(AskedBackends(), available, [PLAIN], torch.float32, half) == ChosenBackends(
        "triton", "triton"
    )


def test_the_stories_see_a_scale_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvPool, "over_stored", lambda pool, spec: spec)
    with pytest.raises(AssertionError):
        check_story(TorchNativeBackend, STORIES["chunks"], PLAIN, page_size=4, stored=E4M3, scales=SCALES)
