"""The torch backend against the slow reference, on every story, layer kind and page size."""

import pytest
import torch

from fixtures.attention_cases import Step, check_shared_pages, check_story, every_layer, every_story
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention import torch_native_backend
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend


@pytest.mark.parametrize("page_size", [1, 16])
@every_layer
@every_story
def test_equals_the_reference(story: list[Step], spec: AttentionSpec, page_size: int) -> None:
    check_story(TorchNativeBackend, story, spec, page_size=page_size)


@every_story
def test_bfloat16(story: list[Step]) -> None:
    spec = AttentionSpec(layer_id=0, num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125)
    check_story(TorchNativeBackend, story, spec, page_size=4, dtype=torch.bfloat16, tolerance=2e-2)


def test_rows_that_share_pages_of_the_same_step() -> None:
    check_shared_pages(TorchNativeBackend)


@every_story
def test_groups_of_any_size_agree(story: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_native_backend, "LONE_QUERIES", 4)
    monkeypatch.setattr(torch_native_backend, "QUERY_CHUNK", 3)
    monkeypatch.setattr(torch_native_backend, "GROUP_KEYS", 40)
    spec = AttentionSpec(layer_id=0, num_heads=4, num_kv_heads=2, head_dim=64, scale=0.125, window=6)
    check_story(TorchNativeBackend, story, spec, page_size=2)
