"""A checkpoint's tensors by name, out of its mapped safetensors files.

Knows tensors, not models; which files there are, `utils/checkpoint_files.py` knows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.checkpoint_files import weight_paths
from mysglang.srt.utils.plain_files import check_plain

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")


@dataclass(slots=True)
class WeightFile:
    """One safetensors file whose header is read and whose length agrees with it."""

    path: Path
    names: list[str] = field(init=False)
    """Its tensors."""
    _handle: Any = field(init=False)  # safetensors says nothing of its types

    def __post_init__(self) -> None:
        check_plain(self.path)
        try:
            self._handle = safe_open(self.path, framework="pt", device="cpu")
            self.names = list(self._handle.keys())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{self.path} is damaged or incomplete ({error}); download it again") from error

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, name: str, device: torch.device) -> Tensor:
        """One tensor. On the CPU it is a view of the mapped file: pages come in when they are used."""
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor.to(device)


def open_weight_files(folder: Path) -> list[WeightFile]:
    """The files that hold the model, headers checked. Raises ConfigError naming the file that is missing or damaged."""
    return [WeightFile(path) for path in weight_paths(folder)]


def read_weights(files: list[WeightFile], *, show_progress: bool) -> Generator[tuple[str, Tensor], None, None]:
    """Every tensor of the files, in their order, as views of the mapped files.

    A view costs nothing: bytes are read when a parameter copies them, and of a tensor that is split over ranks only
    those of this rank's part.
    """
    progress = _Progress(files, show=show_progress)
    try:
        for file in files:
            for name in file.names:
                yield progress.note(file, name, file.read(name, CPU))
    finally:
        progress.close()


class _Progress:
    """A bar on a terminal, a line for each file elsewhere."""

    def __init__(self, files: list[WeightFile], *, show: bool) -> None:
        self._files = files
        self._bar = tqdm(
            total=sum(file.num_bytes for file in files),
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
