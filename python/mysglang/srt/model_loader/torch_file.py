"""TorchFile: the tensors of one file of torch.save, under their names there."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mysglang.srt.model_loader.mapped_file import map_file, typed
from mysglang.srt.utils.torch_archive import archived_tensors
from mysglang.srt.utils.weight_headers import HeaderRoom


class TorchFile:
    """A file of torch.save. Implements `WeightFile` without unpickling: `utils/torch_archive.py`."""

    def __init__(self, path: Path, room: HeaderRoom) -> None:
        """Raises ConfigError for a file that is damaged, or that has anything but tensors."""
        self.path = path
        self._tensors = {tensor.name: tensor for tensor in archived_tensors(path, room)}
        self.names = list(self._tensors)
        self._mapped = map_file(path)

    def read(self, name: str) -> Tensor:
        stored = self._tensors[name]
        dtype: torch.dtype = getattr(torch, stored.dtype)
        values = typed(self._mapped[stored.begin : stored.end], dtype)
        return values.as_strided(stored.shape, stored.strides)

    def header(self, name: str) -> Tensor:
        stored = self._tensors[name]
        return torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta")

    def stored_bytes(self, name: str) -> int:
        return self._tensors[name].end - self._tensors[name].begin


def torch_files(paths: tuple[Path, ...]) -> list[TorchFile]:
    """Returns the files of one model. Raises ConfigError for what cannot be served."""
    room = HeaderRoom()
    return [TorchFile(path, room) for path in paths]
