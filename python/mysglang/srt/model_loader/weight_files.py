"""A checkpoint's tensors by name, out of its mapped files, whatever their format.

Knows tensors, not models; which files there are, `utils/checkpoint_files.py` knows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.gguf_file import gguf_files
from mysglang.srt.model_loader.mapped_file import map_file, typed
from mysglang.srt.utils.checkpoint_files import find_weights
from mysglang.srt.utils.plain_files import check_plain
from mysglang.srt.utils.torch_archive import archived_tensors
from mysglang.srt.utils.weight_headers import HeaderRoom

logger = logging.getLogger(__name__)


class WeightFile(Protocol):
    """One file whose header is read and whose length agrees with it."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> list[str]:
        """Its tensors, by the names of Hugging Face's checkpoints."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor on the CPU: a view of the mapped file where that is possible, so pages come in when they are
        used.
        """
        ...


class SafetensorsFile:
    """Implements `WeightFile`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is damaged."""
        check_plain(path)
        self.path = path
        try:
            handle: Any = safe_open(path, framework="pt", device="cpu")  # safetensors says nothing of its types
            self.names: list[str] = list(handle.keys())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is damaged or incomplete ({error}); download it again") from error
        self._handle = handle

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor


class TorchFile:
    """A file of torch.save. Implements `WeightFile` without unpickling: `utils/torch_archive.py`."""

    def __init__(self, path: Path, room: HeaderRoom) -> None:
        """Raises ConfigError for a file that is damaged, or holds anything but tensors."""
        self.path = path
        self._tensors = {tensor.name: tensor for tensor in archived_tensors(path, room)}
        self.names = list(self._tensors)
        self._mapped = map_file(path)

    def read(self, name: str) -> Tensor:
        stored = self._tensors[name]
        dtype: torch.dtype = getattr(torch, stored.dtype)
        values = typed(self._mapped[stored.begin : stored.end], dtype)
        return values.as_strided(stored.shape, stored.strides)


def _torch_files(paths: tuple[Path, ...]) -> list[WeightFile]:
    room = HeaderRoom()
    return [TorchFile(path, room) for path in paths]


def _gguf_files(paths: tuple[Path, ...]) -> list[WeightFile]:
    return [*gguf_files(paths)]


OPENED_AS: Mapping[str, Callable[[tuple[Path, ...]], list[WeightFile]]] = {
    "safetensors": lambda paths: [SafetensorsFile(path) for path in paths],
    "pt": _torch_files,
    "gguf": _gguf_files,
}


def open_weight_files(path: Path, load_format: str = "auto") -> list[WeightFile]:
    """The files that hold the model at `path`, headers checked. Raises ConfigError naming the file that is missing or
    damaged.
    """
    source = find_weights(path, load_format)
    return OPENED_AS[source.format](source.paths)


def read_weights(files: list[WeightFile], *, show_progress: bool) -> Generator[tuple[str, Tensor], None, None]:
    """Every tensor of the files, in their order, as views of the mapped files.

    A view costs nothing: bytes are read when a parameter copies them, and of a tensor that is split over ranks only
    those of this rank's part.
    """
    progress = _Progress(files, show=show_progress)
    try:
        for file in files:
            for name in file.names:
                yield progress.note(file, name, file.read(name))
    finally:
        progress.close()


class _Progress:
    """A bar on a terminal, a line for each file elsewhere."""

    def __init__(self, files: list[WeightFile], *, show: bool) -> None:
        self._files = files
        self._bar = tqdm(
            total=sum(file.path.stat().st_size for file in files),
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            disable=not (show and sys.stderr.isatty()),
        )
        self._lines = show and not sys.stderr.isatty()
        self._current = 0

    def note(self, file: WeightFile, name: str, tensor: Tensor) -> tuple[str, Tensor]:
        self._bar.update(tensor.nbytes)
        if self._lines and name == file.names[-1]:
            self._current += 1
            logger.info("Loaded %s (%d of %d)", file.path.name, self._current, len(self._files))
        return name, tensor

    def close(self) -> None:
        self._bar.close()
