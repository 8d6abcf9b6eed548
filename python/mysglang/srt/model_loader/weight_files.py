"""A checkpoint's tensors by name: found in safetensors files, checked before anything else is done, read in parallel.

Knows files and headers, not models. Formats whose loading can run code are refused.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import read_json

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
UNSAFE_FORMATS = ("*.bin", "*.pt", "*.pth")


@dataclass(slots=True)
class WeightFile:
    """One safetensors file whose header is read and whose length agrees with it."""

    path: Path
    names: list[str] = field(init=False)
    """Its tensors."""
    _handle: Any = field(init=False)  # safetensors says nothing of its types

    def __post_init__(self) -> None:
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
    return [WeightFile(path) for path in _weight_paths(folder)]


def _weight_paths(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        return _indexed(folder)
    if (folder / WHOLE).exists():
        return [folder / WHOLE]
    # Mistral ships the same weights once more under other names, as consolidated*.safetensors.
    found = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("consolidated")]
    if found:
        return found
    if unsafe := [path.name for pattern in UNSAFE_FORMATS for path in sorted(folder.glob(pattern))]:
        raise ConfigError(
            f"{folder} holds its weights as {unsafe[0]}, a format that can run code when it is loaded; use a revision "
            "with safetensors, or convert it with save_pretrained of transformers"
        )
    raise ConfigError(f"{folder} holds no safetensors files; download the weights, or use --load-format dummy")


def _indexed(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map; download it again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not name or Path(name).name != name:
            raise ConfigError(f"{folder / INDEX} names {name}, which is not a file of the model's directory")
        if not (folder / name).exists():
            raise ConfigError(f"{folder / name} is missing ({INDEX} lists it); download it again")
    return [folder / name for name in names]


def read_weights(
    files: list[WeightFile], device: torch.device, *, num_threads: int, show_progress: bool
) -> Generator[tuple[str, Tensor], None, None]:
    """Every tensor of the files, in their order, on the device.

    A few tensors are read ahead by threads: pages of the files come in, and go to the device, while others are used.
    """
    ahead = 2 * num_threads
    waiting: deque[tuple[WeightFile, str, Future[Tensor]]] = deque()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights")
    progress = _Progress(files, show=show_progress)
    try:
        for file in files:
            for name in file.names:
                waiting.append((file, name, pool.submit(file.read, name, device)))
                if len(waiting) > ahead:
                    yield progress.note(*_take(waiting))
        while waiting:
            yield progress.note(*_take(waiting))
    finally:
        pool.shutdown(cancel_futures=True)
        progress.close()


def _take(waiting: deque[tuple[WeightFile, str, Future[Tensor]]]) -> tuple[WeightFile, str, Tensor]:
    file, name, future = waiting.popleft()
    return file, name, future.result()


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
