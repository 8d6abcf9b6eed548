"""Decoding in parts is decoding: random trees of shared prefixes, every layer kind, page sizes, and bounds of parts."""

import pytest
import torch

from fixtures.attention_cases import SPECS, every_layer
from fixtures.shared_rows import SharedRows, check_shared_rows
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention import torch_native_cascade
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts

EVERY_NODE = CascadeCosts(per_row=0, per_group=0)
FEW = CascadeCosts(per_row=4, per_group=100)


@pytest.mark.parametrize("page_size", [1, 16])
@every_layer
def test_equals_the_reference(spec: AttentionSpec, page_size: int) -> None:
    groups = 0
    for seed in range(4):
        rows = SharedRows(seed, 3 + 5 * seed, page_size=page_size, costs=EVERY_NODE if seed % 2 else FEW)
        groups += check_shared_rows(TorchNativeBackend, spec, rows)
    assert groups > 3


@every_layer
def test_parts_of_any_size_agree(spec: AttentionSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_native_cascade, "PART_KEYS", 23)
    rows = SharedRows(7, 12, page_size=4, costs=EVERY_NODE)
    assert check_shared_rows(TorchNativeBackend, spec, rows) > 1


def test_a_window_that_no_row_sees_the_prefix_through() -> None:
    spec = AttentionSpec(layer_id=0, num_heads=2, num_kv_heads=1, head_dim=64, scale=0.125, window=1)
    rows = SharedRows(3, 12, page_size=1, costs=EVERY_NODE)
    assert check_shared_rows(TorchNativeBackend, spec, rows) > 1


def test_bfloat16() -> None:
    rows = SharedRows(5, 20, page_size=1, costs=EVERY_NODE)
    spec = SPECS["grouped heads"]
    assert check_shared_rows(TorchNativeBackend, spec, rows, dtype=torch.bfloat16, tolerance=2e-2) > 1
