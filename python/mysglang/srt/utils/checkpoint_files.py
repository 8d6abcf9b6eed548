"""The files of a checkpoint: which ones hold its weights, in which format, and what their headers say. No torch.

safetensors     model.safetensors.index.json, model.safetensors, *.safetensors
pt              pytorch_model.bin.index.json, pytorch_model.bin, *.bin, *.pt, *.pth
gguf            *.gguf; or the path of such a file
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.gguf.files import gguf_parts, ggufs_in, listed_files
from mysglang.srt.utils.hf import adapter_refused, read_json
from mysglang.srt.utils.plain_files import check_plain, is_there
from mysglang.srt.utils.weight_headers import (
    MAX_HEADERS,
    MAX_SHARDS,
    MAX_TENSORS,
    HeaderRoom,
    StoredTensor,
    safetensors_header,
)

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_WHOLE = "pytorch_model.bin"

NO_WEIGHTS = ("training_args.", "optimizer.", "scheduler.", "scaler.", "rng_state", "consolidated")
"""Beginnings of the names of files that are not weights, such as a trainer's, and of second copies under Mistral's own
names.
"""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The files that hold a model's weights."""

    format: str
    """One of `FORMATS`; `none` of `NO_FILES`."""
    paths: tuple[Path, ...]
    """Each a regular file."""


NO_FILES = WeightSource("none", ())
"""The source of weights that no local checkpoint holds."""


def find_weights(folder: Path, load_format: str = "auto") -> WeightSource:
    """Returns the weight files of the model in this format; `auto`: in the first format that is found.

    Raises ConfigError naming the file that is to blame.
    """
    if adapters := sorted(folder.glob("adapter_model*")):
        raise adapter_refused(f"{folder} holds a LoRA adapter ({adapters[0].name})")
    for name in FORMATS if load_format == "auto" else [load_format]:
        paths = FORMATS[name].find(folder)
        if len(paths) > MAX_SHARDS:
            raise ConfigError(f"{folder} holds its weights in {len(paths)} files, and at most {MAX_SHARDS} are read")
        for path in paths:
            check_plain(path)
        if paths:
            return WeightSource(name, tuple(paths))
    what = "safetensors, *.bin or *.gguf files" if load_format == "auto" else f"files for --load-format {load_format}"
    raise ConfigError(f"{folder} holds no {what}; download the weights, or use --load-format dummy")


def has_weights(folder: Path) -> bool:
    """True if the directory has files of weights in some format, valid or not."""
    return any(row.find(folder) for row in FORMATS.values())


def stored_tensors(folder: Path, load_format: str = "auto") -> list[StoredTensor]:
    """Returns every tensor of the checkpoint in `folder`, from the headers. Raises ConfigError for a damaged file."""
    source = find_weights(folder, load_format)
    tensors: list[StoredTensor] = []
    room = HeaderRoom(MAX_HEADERS)
    for found in FORMATS[source.format].headers(source.paths, room):
        tensors += found
        if len(tensors) > MAX_TENSORS:
            raise ConfigError(f"{folder} holds more than {MAX_TENSORS} tensors, and at most that many are read")
    return tensors


@dataclass(frozen=True, slots=True)
class _Format:
    find: Callable[[Path], list[Path]]
    """The files of a directory that hold weights in this format; none if it has no such files."""
    headers: Callable[[tuple[Path, ...], HeaderRoom], Iterator[list[StoredTensor]]]
    """Reads the headers, file by file."""


def _safetensors(folder: Path) -> list[Path]:
    return _named(folder, INDEX, WHOLE, ("*.safetensors",))


def _torch_files(folder: Path) -> list[Path]:
    return _named(folder, TORCH_INDEX, TORCH_WHOLE, ("*.bin", "*.pt", "*.pth"))


def _named(folder: Path, index: str, whole: str, patterns: tuple[str, ...]) -> list[Path]:
    if is_there(folder / index):
        return _indexed(folder, index)
    if is_there(folder / whole):
        return [folder / whole]
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if not path.name.startswith(NO_WEIGHTS))


def _indexed(folder: Path, index: str) -> list[Path]:
    weight_map = read_json(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / index} has no weight_map; download it again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if not name or Path(name).name != name:
            raise ConfigError(f"{folder / index} names {name}, which is not a file of the model's directory")
    if len(names) > MAX_SHARDS:
        raise ConfigError(f"{folder / index} names {len(names)} files, and at most {MAX_SHARDS} are read")
    for name in names:
        if not is_there(folder / name):
            raise ConfigError(f"{folder / name} is missing ({index} lists it); download it again")
    return [folder / name for name in names]


def _gguf(path: Path) -> list[Path]:
    found = [path] if path.is_file() else ggufs_in(path)
    if len(found) > 1:
        raise ConfigError(f"{path} holds several GGUF models ({listed_files(found)}); give the path of one of them")
    return gguf_parts(found[0]) if found else []


def _safetensors_headers(paths: tuple[Path, ...], room: HeaderRoom) -> Iterator[list[StoredTensor]]:
    return (safetensors_header(path, room) for path in paths)


def _torch_headers(paths: tuple[Path, ...], room: HeaderRoom) -> Iterator[list[StoredTensor]]:
    from mysglang.srt.utils.torch_archive import archived_tensors

    for path in paths:
        yield [StoredTensor(tensor.name, tensor.shape, path.name) for tensor in archived_tensors(path, room)]


def _gguf_headers(paths: tuple[Path, ...], room: HeaderRoom) -> Iterator[list[StoredTensor]]:
    from mysglang.srt.utils.gguf.model import GgufModel

    yield GgufModel(paths[0], room).stored_tensors()


FORMATS: Mapping[str, _Format] = {
    "safetensors": _Format(_safetensors, _safetensors_headers),
    "pt": _Format(_torch_files, _torch_headers),
    "gguf": _Format(_gguf, _gguf_headers),
}
"""In the order in which `auto` tries them. What reads a format is imported when a checkpoint in it is read."""
