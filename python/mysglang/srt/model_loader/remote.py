"""Filling a model from files behind a URL: of each tensor, only the bytes that this rank's parameter needs are read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.parameter import weight_parameters
from mysglang.srt.model_loader.kv_scales import is_scale
from mysglang.srt.model_loader.read_ahead import in_order_ahead
from mysglang.srt.model_loader.weight_files import Progress
from mysglang.srt.models.checkpoint_model import CheckpointModel, Matching, Place
from mysglang.srt.utils.remote_files import RemoteFolder, read_note, remote_headers
from mysglang.srt.utils.weight_headers import TensorEntry

PIECE = 1 << 24
"""Bytes of one request: what is asked again if the connection is cut."""

READERS = 8
"""Tensors that are read at a time."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types by their names in a header; others are refused."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file behind the URL, as `Progress` counts it."""

    path: Path
    names: list[str]


@dataclass(frozen=True, slots=True)
class RemoteFiller:
    """Fills parameters from byte ranges. Implements `loader.Filler`."""

    folder: RemoteFolder
    headers: dict[str, list[TensorEntry]]

    @classmethod
    def of(cls, model: ModelConfig) -> RemoteFiller:
        """Takes the headers from the note of the launch. Raises ConfigError for damaged ones."""
        note = read_note(Path(model.path))
        headers = remote_headers(note)
        scale = next((entry.name for entries in headers.values() for entry in entries if is_scale(entry.name)), None)
        if scale is not None:
            raise ConfigError(
                f"tensor {scale} is a scale of an eight-bit cache, which --load-format remote does not read; give a "
                "local directory"
            )
        return cls(RemoteFolder(note.url), headers)

    def fill(self, model: CheckpointModel, device: torch.device, *, show_progress: bool) -> None:
        entries = (entry for file in self.headers.values() for entry in file)
        model.check_headers((entry.name, partial(_header, entry)) for entry in entries)
        with closing(self._tensors(model, show_progress)) as weights:
            model.load_weights(weights)

    def _tensors(self, model: CheckpointModel, show_progress: bool) -> Generator[tuple[str, Tensor], None, None]:
        matching = Matching(model, weight_parameters(model))
        rows = [(file, entry) for file, entries in self.headers.items() for entry in entries]
        files = {name: RemoteFile(Path(name), [entry.name for entry in each]) for name, each in self.headers.items()}
        total = sum(entry.end - entry.begin for _, entry in rows)
        progress = Progress(list(files.values()), show=show_progress, total=total)
        reads = (partial(self._read, file, entry, matching.place(entry.name)) for file, entry in rows)
        try:
            with closing(in_order_ahead(reads, READERS)) as tensors:
                for (file, entry), tensor in zip(rows, tensors, strict=True):
                    yield entry.name, tensor
                    progress.note(files[file], entry.name, entry.end - entry.begin)
        finally:
            progress.close()

    def _read(self, file: str, entry: TensorEntry, place: Place | None) -> Tensor:
        """Returns a tensor of which only the bytes that its parameter takes were read. Raises ConfigError."""
        if place is None:
            # The model says later whether it may be left out.
            return torch.empty(0)
        # Memory that is never written costs nothing, so the rows of other ranks are left as they are.
        tensor = torch.empty_like(_header(entry), device="cpu")
        begin, end = place.parameter.span(tensor, place.section)
        content = tensor.view(-1).view(torch.uint8).numpy().data
        for at in range(begin, end, PIECE):
            stop = min(at + PIECE, end)
            content[at:stop] = self.folder.read(file, entry.begin + at, entry.begin + stop)
        return tensor


def _header(entry: TensorEntry) -> Tensor:
    """Returns the shape and dtype of a tensor, on the meta device. Raises ConfigError for those that no tensor has."""
    if entry.dtype not in DTYPES:
        raise ConfigError(f"tensor {entry.name} is of {entry.dtype}; known are {', '.join(DTYPES)}")
    try:
        return torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device="meta")
    except RuntimeError as error:
        raise ConfigError(f"tensor {entry.name} has shape {list(entry.shape)}, which no memory can hold") from error
