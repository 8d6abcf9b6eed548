"""The files of `--load-format sharded_state`: one model as its ranks hold it, each rank's part in files of its own.

    model-rank-0-part-0.safetensors   model-rank-0-part-1.safetensors   …
    model-rank-1-part-0.safetensors   …

Each file has a label in the metadata of its header: which model, rank and part it is, and how many there are. Files are
recognised by their labels, so any file name will do. Knows labels and files, not tensors; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.plain_files import check_plain
from mysglang.srt.utils.weight_headers import MAX_SHARDS, SHARD_LABEL, HeaderRoom, safetensors_metadata

DEFAULT_PATTERN = "model-rank-{rank}-part-{part}.safetensors"
"""SGLang's pattern of the file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """Facts that all files of one model share. A server reads them only if its own are equal."""

    architecture: str
    tp_size: int
    dtype: str
    quantization: str = "none"
    layout: int = 1
    """Grows with each change in how layers keep their parameters. Labels without it are the oldest."""


LAYOUT = 2
"""2: queries and keys of heads of which a part is rotated are kept in the order of the rotation."""
_FLAGS = {"tp_size": "--tp-size", "dtype": "--dtype", "quantization": "--quantization"}
ADVICE = {name: f"; set {flag} as it was, or save the model again" for name, flag in _FLAGS.items()} | {
    "layout": ", which keeps parameters in another order; save the model again"
}
"""Advice about a field of `SavedModel` that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Label of one file."""

    saved: str
    """A random name of the save, which all files of all ranks have."""
    model: SavedModel
    rank: int
    part: int
    parts: int
    """Number of files of this rank."""

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of the file's header."""
        return {"format": "pt", SHARD_LABEL: msgspec.json.encode(self).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """Directory and file names for the parts of the model that the ranks write."""

    path: str
    """An existing directory, which all ranks see."""
    pattern: str
    """Pattern of the file names, with {rank} and {part}."""
    max_size: int | None
    """Limit of a file in bytes, unless one parameter is larger; None: each rank writes one file."""
    saved: str
    """A random name of this save, which each file gets."""

    def file(self, rank: int, part: int) -> Path:
        """Returns the path of one file."""
        return Path(self.path) / self.pattern.replace("{rank}", str(rank)).replace("{part}", str(part))


def label_in(path: Path, metadata: Mapping[str, str]) -> Label | None:
    """Returns the label in a header's metadata; None if there is none. Raises ConfigError for a damaged label."""
    text = metadata.get(SHARD_LABEL)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Label)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path} has a damaged label {SHARD_LABEL} ({error}); save the model again") from error


def rank_files(folder: Path, model: SavedModel, rank: int) -> list[Path]:
    """Returns the files of one rank, in the order of their parts.

    Raises ConfigError naming the field, if the files are of another model, or a part of this rank is missing.
    """
    return [path for path, label in sorted(_checked(folder, model), key=lambda row: row[1].part) if label.rank == rank]


def check_sharded_state(folder: Path, model: SavedModel) -> None:
    """Checks that the files of all ranks are there. Raises ConfigError as `rank_files` does."""
    _checked(folder, model)


def _checked(folder: Path, model: SavedModel) -> list[tuple[Path, Label]]:
    labelled = _labelled(folder)
    first_path, first = labelled[0]
    for field in fields(SavedModel):
        saved, wanted = getattr(first.model, field.name), getattr(model, field.name)
        if saved != wanted:
            advice = ADVICE.get(field.name, "")
            raise ConfigError(
                f"{field.name}: {first_path} was saved with {saved}, and this server has {wanted}{advice}"
            )
    there: dict[tuple[int, int], Path] = {}
    parts: dict[int, int] = {}
    for path, label in labelled:
        if replace(label, rank=0, part=0, parts=0) != replace(first, rank=0, part=0, parts=0):
            raise ConfigError(f"saved: {path} and {first_path} are of different saves; keep the files of one of them")
        twin = there.setdefault((label.rank, label.part), path)
        if twin != path:
            raise ConfigError(f"part: {path} and {twin} are both part {label.part} of rank {label.rank}")
        known = parts.setdefault(label.rank, label.parts)
        if label.parts != known or not 0 <= label.part < known or not 0 <= label.rank < model.tp_size:
            raise ConfigError(f"part: {path} says part {label.part} of {label.parts} of rank {label.rank}; save again")
    for rank in range(model.tp_size):
        for part in range(parts.get(rank, 1)):
            if (rank, part) not in there:
                of = f" of {parts[rank]}" if rank in parts else ""
                raise ConfigError(f"part: {folder} lacks part {part}{of} of rank {rank}; copy all files, or save again")
    return labelled


def _labelled(folder: Path) -> list[tuple[Path, Label]]:
    """Returns the safetensors files of the folder with their labels; at least one. Raises ConfigError."""
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not paths:
        raise ConfigError(
            f"{folder} holds no files for --load-format sharded_state; Engine.save_sharded_model writes them"
        )
    if len(paths) > MAX_SHARDS:
        raise ConfigError(f"{folder} holds its weights in {len(paths)} files, and at most {MAX_SHARDS} are read")
    room = HeaderRoom()
    labelled = []
    for path in paths:
        check_plain(path)
        label = label_in(path, safetensors_metadata(path, room))
        if label is None:
            raise ConfigError(
                f"{path} was not written by this server's save_sharded_model: its header has no label {SHARD_LABEL}. "
                "Other servers' sharded states have other names; save the model here, or use --load-format auto for a "
                "checkpoint"
            )
        labelled.append((path, label))
    return labelled
