"""The attention of deterministic inference: the stories of every backend, and each query the same bit for bit however
its row comes: in one step, in chunks, token by token, beside others."""

from dataclasses import replace

import pytest
import torch

from fixtures.attention_cases import (
    STORIES,
    Step,
    check_shared_pages,
    check_story,
    every_layer,
    every_spec,
    every_story,
)
from fixtures.invariant_attention import check_bits
from fixtures.triton_on_cpu import run_interpreted
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention.cpu_backend import make_invariant
from mysglang.srt.layers.attention.invariant_torch import InvariantTorchBackend

TRITON = """
from dataclasses import replace
import torch
from fixtures.attention_cases import MIXED, PLAIN, STORIES, check_shared_pages, check_story
from fixtures.invariant_attention import check_bits
from mysglang.srt.kernels.cuda import invariant_cut
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
# So that short rows have several spans too.
invariant_cut.SPAN = 64
small = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16)
windowed = replace(small, num_heads=3, window=5, logit_cap=3.0)
own = replace(small, window=7, chunked=True, sinks=torch.tensor([0.5, 3.0]))
for story, specs in (
    (STORIES["chunks"], (small, own)),
    (STORIES["prompt then decode"], (windowed, replace(small, head_dim=24))),
    (MIXED, (windowed, own)),
):
    for spec in specs:
        check_story(InvariantTritonBackend, story, spec, page_size=4, tolerance=1e-4)
# Beyond the first tile of keys, where a window skips some.
check_story(InvariantTritonBackend, STORIES["decode of many lengths"], windowed, page_size=4, tolerance=1e-4)
check_shared_pages(InvariantTritonBackend)
# The last steps decode across the edge between two spans.
lengths = dict(length=130, single_from=126)
check_bits(InvariantTritonBackend, small, page_sizes=(16,), **lengths)
check_bits(InvariantTritonBackend, windowed, chunks=(17,), page_sizes=(1,), **lengths)
check_bits(InvariantTritonBackend, replace(small, window=70), chunks=(64,), page_sizes=(16,), **lengths)
check_bits(InvariantTritonBackend, replace(own, window=70), chunks=(17,), page_sizes=(16,), **lengths)
# Several spans to a program, and no splitting at all: of these only decode steps hear.
for name, few in (("PROGRAMS", 2), ("SPLIT_ROWS", 0)):
    setattr(invariant_cut, name, few)
    check_bits(InvariantTritonBackend, windowed, chunks=(), page_sizes=(16,), **lengths)
print("all agree")
"""

TILES = """
from dataclasses import replace
import torch
from fixtures.attention_cases import PLAIN
from mysglang.srt.kernels.cuda import invariant_attention as kernel
kernel.TRIED_LENGTHS = (1, 70)
spec, like = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16, window=40), torch.randn(1, 32)
other, attend = kernel.Tile(64, 2, 3), kernel._attend
assert kernel.agree(kernel.TILE, other, like, 4, spec)
kernel._attend = lambda *args: attend(*args).add_(1e-6 if args[5] is other else 0.0)
assert not kernel.agree(kernel.TILE, other, like, 4, spec)
print("all agree")
"""


@pytest.mark.parametrize("page_size", [1, 16])
@every_layer
@every_story
def test_stories(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    torch.set_num_threads(1)
    check_story(InvariantTorchBackend, story, spec, page_size=page_size)


def test_shared_pages() -> None:
    check_shared_pages(InvariantTorchBackend)


@every_layer
@pytest.mark.promise(26)
def test_bits(spec: AttentionSpec) -> None:
    torch.set_num_threads(1)
    check_bits(InvariantTorchBackend, spec, length=300, single_from=270)


@pytest.mark.promise(26)
@pytest.mark.parametrize("threads", [1, 2])
@every_spec
def test_bits_of_our_own_kernel(spec: AttentionSpec, threads: int) -> None:
    native = pytest.importorskip("mysgl_kernel.cpu.attention")
    if not native.available():
        pytest.skip("needs a compiler")
    torch.set_num_threads(threads)
    wide = replace(spec, head_dim=64)
    check_bits(make_invariant, wide, length=300, single_from=270, dtype=torch.bfloat16)
    check_story(make_invariant, STORIES["chunks"], wide, page_size=4, dtype=torch.bfloat16, tolerance=3e-2)
    torch.set_num_threads(1)


@pytest.mark.promise(26)
def test_triton_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TRITON).strip() == "all agree"


def test_a_tile_that_gives_other_bits_is_found_out() -> None:
    pytest.importorskip("triton")
    assert run_interpreted(TILES).strip() == "all agree"
