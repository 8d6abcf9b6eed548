"""Zeros by page: the same numbers as torch.zeros, in memory that is there once it is used."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mysglang.srt.platforms import zeros as module
from mysglang.srt.platforms.zeros import fill_with_zeros, release, resume, zeros

CPU = torch.device("cpu")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
LARGE = 64 * mmap.PAGESIZE


def pages_of(tensor: Tensor) -> int:
    """Returns how many pages inside the tensor's memory have a place in the machine's memory."""
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE)
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as table:
        table.seek(begin * 8)
        entries = table.read((end - begin) * 8)
    return sum(entries[place + 7] >> 7 for place in range(0, len(entries), 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize("shape", [(0,), (3,), (5, 7), (mmap.PAGESIZE,), (300, 2, 64)])
@pytest.mark.parametrize("whole_pages", [True, False], ids=["pages", "written"])
def test_used_memory_becomes_zero_and_its_neighbours_stay(
    dtype: torch.dtype, shape: tuple[int, ...], whole_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried at several places within a page, inside memory that another object owns the rest of."""
    if not whole_pages:
        monkeypatch.setattr(module, "_give_back", lambda address, nbytes: False)
    size = torch.zeros(shape, dtype=dtype).nbytes
    for offset in (0, 8, 64, mmap.PAGESIZE - 8):
        whole = torch.full((size + 2 * mmap.PAGESIZE,), 255, dtype=torch.uint8)
        memory = whole[offset : offset + size].view(dtype).view(shape)
        assert fill_with_zeros(memory) is memory
        assert not whole[offset : offset + size].any()
        assert (whole[:offset] == 255).all()
        assert (whole[offset + size :] == 255).all()


def test_new_and_resumed_tensors_are_torchs() -> None:
    made = zeros(300, 2, 64, dtype=torch.bfloat16, device=CPU)
    assert torch.equal(made, torch.zeros(300, 2, 64, dtype=torch.bfloat16))
    made.fill_(1)
    release([made])
    assert made.untyped_storage().nbytes() == 0
    resume([made])
    assert torch.equal(made, torch.zeros(300, 2, 64, dtype=torch.bfloat16))


@LINUX
def test_memory_is_there_once_it_is_used() -> None:
    made = zeros(LARGE, dtype=torch.uint8, device=CPU)
    assert pages_of(made) == 0
    made[LARGE // 2] = 1
    assert pages_of(made) == 1
    fill_with_zeros(made)
    assert (pages_of(made), int(made[LARGE // 2])) == (0, 0)
    assert pages_of(torch.zeros(LARGE, dtype=torch.uint8)) >= LARGE // mmap.PAGESIZE - 1, "the reference writes all"


@LINUX
def test_a_refusal_of_the_system_is_reported() -> None:
    assert not module._give_back(1, mmap.PAGESIZE), "not the beginning of a page"
