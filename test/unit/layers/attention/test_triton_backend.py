"""The Triton backend by Triton's interpreter: the stories of every backend, on small shapes."""

import pytest

from fixtures.triton_on_cpu import run_interpreted

pytest.importorskip("triton")

PROGRAM = """
from dataclasses import replace
import torch
from fixtures.attention_cases import LATENT, PLAIN, STORIES, check_shared_pages, check_story
from fixtures.late_attention import check_late_lengths
from mysglang.srt.kernels.cuda import latent_attention
from mysglang.srt.layers.attention.invariant_triton import InvariantTritonBackend
from mysglang.srt.layers.attention.triton_backend import TritonBackend

small = replace(PLAIN, num_heads=2, num_kv_heads=1, head_dim=16)
for name, page_sizes in (("chunks", (1, 4, 1)), ("prompt then decode", (4, 1, 4))):
    layers = (small, replace(small, window=5, logit_cap=3.0), replace(small, head_dim=24))
    for spec, page_size in zip(layers, page_sizes):
        check_story(TritonBackend, STORIES[name], spec, page_size=page_size, tolerance=1e-4)
    sinks = torch.tensor([0.5, 3.0])
    check_story(TritonBackend, STORIES[name], replace(small, window=5, chunked=True), page_size=4, tolerance=1e-4)
    check_story(TritonBackend, STORIES[name], replace(small, sinks=sinks), page_size=4, tolerance=1e-4)
check_shared_pages(TritonBackend)
assert [latent_attention.splits_of(tiles) for tiles in (1, 4, 5, 48, 49, 97)] == [64, 64, 16, 8, 4, 2]
# Fewer programs, which the interpreter runs one after another.
latent_attention.SPLITS = ((1, 8),)
# One row for all heads: more heads than a tile holds, and fewer; sizes that are no powers of two.
odd = replace(LATENT, num_heads=5, head_dim=30, latent_dim=24)
for spec, page_size in ((replace(LATENT, num_heads=19), 1), (odd, 4)):
    check_story(TritonBackend, STORIES["prompt then decode"], spec, page_size=page_size, tolerance=1e-4)
check_story(TritonBackend, STORIES["chunks"], LATENT, page_size=4, tolerance=1e-4)
check_story(TritonBackend, STORIES["decode of many lengths"], LATENT, page_size=1, tolerance=1e-4)
# Steps with new tokens as captured ones read them: launched for all tokens in one row.
class Replayed(TritonBackend):
    def plan(self, batch):
        if batch.mode.is_decode:
            return super().plan(batch)
        capture = self.prompt_capture([LATENT])
        batch.attn_metadata = capture.open_graph(batch)
        capture.begin_step(batch)
        assert capture.covers(batch.host.seq_lens, batch.host.extend_lens)
        return batch.attn_metadata
for spec in (LATENT, small):
    check_story(Replayed, STORIES["chunks"], spec, page_size=4, tolerance=1e-4)
# More keys than rows have, and more queries than one.
bounds = {"bounds": (0, 3, 9), "page_size": 4, "tolerance": 1e-4}
check_late_lengths(TritonBackend, small, (4, 17, 65), q_len=4, **bounds)
check_late_lengths(TritonBackend, replace(small, logit_cap=3.0), (17,), q_len=4, **bounds)
# The window is beyond the first tile of keys.
for spec in (replace(small, window=5), replace(small, window=7, chunked=True)):
    check_late_lengths(TritonBackend, spec, (65,), q_len=4, **bounds)
check_late_lengths(TritonBackend, small, (4, 130), q_len=1, **bounds)
# Rows with room for more queries than they have, by each kernel that takes such steps.
few = {"q_len": 2, "bounds": (0, 9), "page_size": 4, "tolerance": 1e-4, "room": 3}
kinds = [(TritonBackend, replace(small, window=5)), (TritonBackend, replace(small, num_heads=16))]
for make, spec in (*kinds, (InvariantTritonBackend, small)):
    check_late_lengths(make, spec, (4, 65), **few)
print("all agree")
"""


LONG = """
import numpy as np
from mysglang.srt.layers.attention.triton_backend import MOST_LATENT_SCORES, TritonPrompts
most = MOST_LATENT_SCORES // 16
longest = most // 100
for heads, new, length, covered in ((16, 100, longest, True), (16, 100, longest + 1, False), (0, 100, most, True)):
    assert TritonPrompts(heads).covers(np.array([length, 0], np.int32), np.array([new, 0], np.int32)) == covered
print("all agree")
"""


def test_long_steps_over_latent_rows_are_not_captured() -> None:
    assert run_interpreted(LONG).strip() == "all agree"


def test_stories() -> None:
    assert run_interpreted(PROGRAM).strip() == "all agree"
