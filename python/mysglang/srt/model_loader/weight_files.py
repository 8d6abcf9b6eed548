"""A checkpoint's tensors by name, out of its mapped files, whatever their format.

Knows tensors, not models; which files there are, `utils/checkpoint_files.py` knows.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from mysglang.srt.configs.load_format import AUTO, WeightFormat
from mysglang.srt.configs.pooling_config import DenseConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.read_ahead import PageAhead, in_order_ahead
from mysglang.srt.utils.checkpoint_files import NO_FILES
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.late_import import at_first_call
from mysglang.srt.utils.plain_files import check_plain
from mysglang.srt.utils.weight_headers import SHARD_LABEL, VALUE_BYTES, part_of_a_model

logger = logging.getLogger(__name__)


SILENCE_S = 10.0
"""After so long without a line, a log says how far loading is."""


class NamedFile(Protocol):
    """One file of tensors."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> list[str]:
        """Names of its tensors, as in Hugging Face's checkpoints."""
        ...


class WeightFile(NamedFile, Protocol):
    """One file whose header is read and whose length agrees with it."""

    def read(self, name: str) -> Tensor:
        """Returns one tensor on the CPU: a view of the mapped file where that is possible, so pages are read when they
        are used. May be called from several threads.
        """
        ...

    def header(self, name: str) -> Tensor:
        """Returns the shape and dtype that `read` would give, as a tensor on the meta device. Reads no values."""
        ...

    def stored_bytes(self, name: str) -> int:
        """Returns the number of bytes of the tensor in the file."""
        ...


class SafetensorsFile:
    """A safetensors file of a checkpoint (a `WeightFile`)."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a damaged file."""
        check_plain(path)
        self.path = path
        try:
            handle: Any = safe_open(path, framework="pt", device="cpu")  # safetensors says nothing of its types
            self.names: list[str] = list(handle.offset_keys())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is damaged or incomplete ({error}); download it again") from error
        self._handle = handle
        self.is_part = SHARD_LABEL in (handle.metadata() or {})
        """True if it is of a sharded state, whose names and order are those of this server's parameters."""

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor

    def header(self, name: str) -> Tensor:
        return self.read(name).to("meta")

    def stored_bytes(self, name: str) -> int:
        entry = self._handle.get_slice(name)  # by the header: a tensor is made fifty times more slowly
        value_bytes = VALUE_BYTES.get(entry.get_dtype())
        return self.read(name).nbytes if value_bytes is None else math.prod(entry.get_shape()) * value_bytes


def checkpoint_file(path: Path) -> SafetensorsFile:
    """Returns a safetensors file with names of a checkpoint. Raises ConfigError if it is damaged, or of a sharded
    state.
    """
    file = SafetensorsFile(path)
    if file.is_part:
        raise part_of_a_model(path)
    return file


OPENED_AS: Mapping[str, Callable[[tuple[Path, ...]], list[WeightFile]]] = {
    "safetensors": lambda paths: [checkpoint_file(path) for path in paths],
    "pt": at_first_call("mysglang.srt.model_loader.torch_file:torch_files"),
    "gguf": at_first_call("mysglang.srt.model_loader.gguf_file:gguf_files"),
    NO_FILES.format: lambda paths: [],
}


def open_weight_files(path: Path, weights: WeightFormat = AUTO) -> list[WeightFile]:
    """Returns the files that hold the model at `path`, headers checked; none for a format without a checkpoint's files.
    Raises ConfigError naming the file that is missing or damaged.
    """
    source = weights.source(path)
    return OPENED_AS[source.format](source.paths)


class ModuleFile:
    """A file of a module of sentence-transformers, whose tensors have `prefix` before their names (a `WeightFile`)."""

    def __init__(self, file: WeightFile, prefix: str) -> None:
        self.path = file.path
        self.names = [prefix + name for name in file.names]
        self._file = file
        self._prefix = prefix

    def read(self, name: str) -> Tensor:
        return self._file.read(name.removeprefix(self._prefix))

    def header(self, name: str) -> Tensor:
        return self._file.header(name.removeprefix(self._prefix))

    def stored_bytes(self, name: str) -> int:
        return self._file.stored_bytes(name.removeprefix(self._prefix))


def open_with_dense(path: Path, weights: WeightFormat, dense: Sequence[DenseConfig]) -> list[WeightFile]:
    """Returns the files that hold the model at `path`, and those of its dense modules, whose tensors are named
    `dense.<number>.linear.weight` and so on. Raises ConfigError as `open_weight_files`.
    """
    files = open_weight_files(path, weights)
    for number, module in enumerate(dense):
        files += [ModuleFile(file, f"dense.{number}.") for file in open_weight_files(path / module.path)]
    return files


def read_weights(files: list[WeightFile], *, show_progress: bool) -> Generator[tuple[str, Tensor], None, None]:
    """Yields every tensor of the files, in their order.

    Most are views of the mapped files, which cost nothing: bytes are read when a parameter copies them, and for a
    tensor that is split over ranks only this rank's part. The disk reads ahead of that.
    """
    named = [(file, name) for file in files for name in file.names]
    ahead, progress = PageAhead([file.path for file in files]), Progress(files, show=show_progress)
    reads = (partial(file.read, name) for file, name in named)
    try:
        with closing(in_order_ahead(reads)) as tensors:
            for (file, name), tensor in zip(named, tensors, strict=True):
                num_bytes = file.stored_bytes(name)
                ahead.note_copied(num_bytes)
                yield name, tensor
                progress.note(file, name, num_bytes)
    finally:
        progress.close()
        ahead.close()


class Progress:
    """Reports progress: a bar on a terminal; elsewhere a line for each file, and one now and then in a long file."""

    def __init__(
        self,
        files: Sequence[NamedFile],
        *,
        show: bool,
        clock: Callable[[], float] = time.monotonic,
        total: int | None = None,
    ) -> None:
        """`clock` returns seconds since any fixed time. `total`: bytes of all files; None: they are local files."""
        self._files = files
        self._total = sum(file.path.stat().st_size for file in files) if total is None else total
        self._bar = tqdm(
            total=self._total,
            desc="Loading weights",
            unit="B",
            unit_scale=True,
            disable=not (show and sys.stderr.isatty()),
        )
        self._lines = show and not sys.stderr.isatty()
        self._clock = clock
        self._began = self._said = clock()
        self._done_files = self._done = 0

    def note(self, file: NamedFile, name: str, num_bytes: int) -> None:
        """Counts a tensor that was copied into the model."""
        self._done += num_bytes
        self._bar.update(num_bytes)
        if not self._lines:
            return
        now = self._clock()
        if name == file.names[-1]:
            self._done_files += 1
            logger.info("Loaded %s (%d of %d).", file.path.name, self._done_files, len(self._files))
        elif now - self._said >= SILENCE_S:
            speed = self._done / GIB / (now - self._began)
            logger.info("Loaded %.1f of %.1f GiB (%.2f GiB/s).", self._done / GIB, self._total / GIB, speed)
        else:
            return
        self._said = now

    def close(self) -> None:
        self._bar.close()
