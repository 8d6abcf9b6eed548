"""Uploader: many small host arrays to the device in one copy.

    one uint8 buffer   | input_ids int64 | slots int64 | … | seq_lens int32 |     each at a multiple of 16 bytes

On CUDA the host buffer is pinned and the copy is queued; on a CPU the host buffer is the device's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.platforms.interface import Platform

Column = npt.NDArray[np.generic]

ALIGNMENT = 16
"""Bytes: the most that a kernel reads at once."""
DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}


class Uploader:
    """Uploads columns to the device. It is stateless: each upload has buffers of its own, which live as long as their
    tensors.
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def upload(self, columns: Mapping[str, Column]) -> dict[str, Tensor]:
        """Returns the columns as tensors on the device, in their own dtypes and shapes. They have their values when the
        stream has executed the copy.
        """
        offsets, total = layout(columns)
        host = self._platform.upload_bytes(total)
        fill(host, columns, offsets)
        device = host.to(self._platform.device, non_blocking=True)
        return {name: view(device, column, offsets[name]) for name, column in columns.items()}


def layout(columns: Mapping[str, Column]) -> tuple[dict[str, int], int]:
    """Returns the offset of each column, and the total number of bytes."""
    offsets, end = {}, 0
    for name, column in columns.items():
        offsets[name] = end
        end += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def fill(host: Tensor, columns: Mapping[str, Column], offsets: Mapping[str, int]) -> None:
    """Copies the columns into the buffer."""
    buffer = host.numpy()
    for name, column in columns.items():
        begin = offsets[name]
        buffer[begin : begin + column.nbytes].view(column.dtype)[:] = column.reshape(-1)


def view(buffer: Tensor, column: Column, offset: int) -> Tensor:
    """Returns the column inside the buffer, as a tensor like it."""
    return buffer[offset : offset + column.nbytes].view(DTYPES[column.dtype]).view(column.shape)


def to_device(column: Column, device: torch.device) -> Tensor:
    """Returns one array on a device; the host does not wait for a copy."""
    host = torch.from_numpy(column)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
