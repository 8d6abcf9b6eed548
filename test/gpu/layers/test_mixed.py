"""Steps of prompts and decoding rows, each part with another backend's kernels."""

import importlib.util

import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import MIXED, PLAIN, check_story
from mysglang.srt.forward.forward_batch import AttentionBackend
from mysglang.srt.layers.attention import mixed
from mysglang.srt.mem_cache.kv_pool.base import KvPool


def flashinfer_and_triton(pool: KvPool, table: Tensor) -> AttentionBackend:
    from mysglang.srt.layers.attention.flashinfer_backend import FlashInferBackend
    from mysglang.srt.layers.attention.split import SplitGraphBackend
    from mysglang.srt.layers.attention.triton_backend import TritonBackend

    return SplitGraphBackend(FlashInferBackend(pool, table), TritonBackend(pool, table))


@pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed")
@pytest.mark.parametrize("page_size", [1, 16])
def test_both_parts_give_what_the_reference_gives(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "WORTH_A_PART", 2)
    check_story(
        flashinfer_and_triton, MIXED, PLAIN, page_size=page_size, dtype=torch.bfloat16, device="cuda", tolerance=2e-2
    )
