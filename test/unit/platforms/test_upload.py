"""Columns of every dtype and shape come out of the one buffer as they went in."""

import numpy as np
import torch

from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.upload import ALIGNMENT, Uploader, layout


def test_columns_survive() -> None:
    columns = {
        "longs": np.array([1, -1, 1 << 40]),
        "ints": np.array([[1, 2], [3, 4]], dtype=np.int32)[:, 0],  # not contiguous
        "none": np.zeros(0, dtype=np.int64),
        "floats": np.array([1.5], dtype=np.float32),
        "doubles": np.array([[0.1, 0.2]]),
        "bools": np.array([True, False, True]),
    }
    uploaded = Uploader(CpuPlatform()).upload(columns)
    assert list(uploaded) == list(columns)
    for name, column in columns.items():
        assert uploaded[name].shape == column.shape
        assert uploaded[name].numpy().dtype == column.dtype
        assert np.array_equal(uploaded[name].numpy(), column)
    uploaded["ints"][0] = 9
    assert columns["ints"][0] == 1


def test_layout_is_aligned() -> None:
    columns = {"a": np.zeros(3, dtype=np.bool_), "b": np.zeros(5, dtype=np.int64), "c": np.zeros(1, dtype=np.int32)}
    offsets, total = layout(columns)
    assert all(offset % ALIGNMENT == 0 for offset in offsets.values())
    ends = {name: offsets[name] + column.nbytes for name, column in columns.items()}
    assert ends["a"] <= offsets["b"] and ends["b"] <= offsets["c"] and ends["c"] <= total


def test_each_upload_has_memory_of_its_own() -> None:
    uploader = Uploader(CpuPlatform())
    first = uploader.upload({"x": np.array([1])})["x"]
    uploader.upload({"x": np.array([2])})
    assert torch.equal(first, torch.tensor([1]))
