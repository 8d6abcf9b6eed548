"""Commands of routes and Engine about a running engine's weights, and the transfer of tensors from a client to the
scheduler.

Tensors travel as safetensors files in a private folder: the scheduler maps them instead of receiving gigabytes over a
socket. Nothing is unpickled anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import uuid4

from mysglang.srt.args.resolve import path_of
from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.errors import ConfigError, InvalidRequest, NoRoom
from mysglang.srt.messages.control import ControlReqOutput
from mysglang.srt.messages.weights import UpdateWeightsReq, WeightUpdate
from mysglang.srt.utils.checkpoint_files import find_weights
from mysglang.srt.utils.disk import room_for
from mysglang.srt.utils.hf import CONFIG_FILES, REMOTE_NOTE, resolve_model_path
from mysglang.srt.utils.model_source import model_source
from mysglang.srt.utils.private_dir import private_dir
from mysglang.srt.utils.sharded_state import DEFAULT_PATTERN, ShardPlace

PATIENCE_S = 3600.0
"""Seconds for open requests to end and for weights to be read. If the engine dies, the wait ends."""

DiskFormat: TypeAlias = Literal["auto", "safetensors"]
"""Formats of a checkpoint that an update may ask for."""

WRITE_BYTES = 4 << 20

WEIGHTS = "these weights"

DEFAULT_GROUP = "weight_update_group"
"""SGLang's name for the group of a trainer."""


async def update_from_disk(
    manager: Manager, model_path: str, update: WeightUpdate, load_format: DiskFormat = "auto"
) -> ControlReqOutput:
    """Serve the checkpoint at `model_path`: a directory, a repository, or `tiny`, as for --model-path. Raises
    InvalidRequest if there is none in that format, which is `auto` or `safetensors`.
    """
    try:
        folder = await asyncio.to_thread(resolve_model_path, path_of(model_path), load_format=load_format)
        await asyncio.to_thread(model_source(folder).config)
        if load_format != "auto":
            # The schedulers read the first format that is there, and safetensors are the first of all.
            await asyncio.to_thread(find_weights, folder, load_format)
    except ConfigError as error:
        raise InvalidRequest(f"model_path: {'; '.join(error.problems)}", param="model_path") from None
    return await _update(manager, folder, update, whole=True)


async def update_from_folder(manager: Manager, folder: Path, update: WeightUpdate) -> ControlReqOutput:
    """Updates the weights from the safetensors files of `folder`, which may hold any of the model's tensors."""
    return await _update(manager, folder, update, whole=False)


async def _update(manager: Manager, folder: Path, update: WeightUpdate, *, whole: bool) -> ControlReqOutput:
    path = str(folder.absolute())
    return await manager.command(
        lambda number: UpdateWeightsReq(id=number, path=path, whole=whole, update=update), patience_s=PATIENCE_S
    )


def shard_place(path: Path, pattern: str | None, max_size: int | None) -> ShardPlace:
    """Makes the directory `path` for files of a sharded state. Raises InvalidRequest if it has weights already, or if a
    field is invalid.
    """
    names = DEFAULT_PATTERN if pattern is None else pattern
    if (
        Path(names).name != names
        or not names.endswith(".safetensors")
        or "{rank}" not in names
        or "{part}" not in names
    ):
        message = f"pattern: {names!r} must be a file name with {{rank}} and {{part}} that ends in .safetensors."
        raise InvalidRequest(message, param="pattern")
    if max_size is not None and max_size < 1:
        raise InvalidRequest(f"max_size: must be at least 1 byte, not {max_size}.", param="max_size")
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = next(path.glob("*.safetensors"), None)
    except OSError as error:
        raise InvalidRequest(f"path: {path} cannot be made: {error.strerror}", param="path") from None
    if found is not None:
        raise InvalidRequest(f"path: {path} holds weights already ({found.name}); give another one.", param="path")
    return ShardPlace(path=str(path.absolute()), pattern=names, max_size=max_size, saved=uuid4().hex)


def copy_config(model: Path, path: Path) -> None:
    """Copies config and tokenizer files of the directory `model`. Raises InvalidRequest if it is a GGUF file, which has
    none, or if a file cannot be copied.
    """
    if not model.is_dir():
        raise InvalidRequest(f"path: {model} is one file, without a config.json that could be copied.", param="path")
    files = {file for pattern in CONFIG_FILES for file in (*model.glob(pattern), *model.glob(f"[0-9]*/{pattern}"))}
    try:
        for file in sorted(files):
            if file.is_file() and not file.name.endswith(".index.json") and file.name != REMOTE_NOTE:
                target = path / file.relative_to(model)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)
    except OSError as error:
        raise InvalidRequest(f"path: {path} cannot be written: {error}", param="path") from None


def private_folder() -> AbstractContextManager[Path]:
    """Makes a folder that only this user can read. It is removed on exit from the block."""
    return private_dir("weights")


def write_encoded(folder: Path, files: Sequence[str]) -> None:
    """Writes safetensors files, given as base64 texts, into `folder`. Raises InvalidRequest for invalid base64,
    NoRoom.
    """
    for index, text in enumerate(files):
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            message = f"serialized_named_tensors.{index}: must be a safetensors file in base64."
            raise InvalidRequest(message, param="serialized_named_tensors") from None
        with room_for(WEIGHTS):
            (folder / f"{index:05}.safetensors").write_bytes(data)


@asynccontextmanager
async def spooled(parts: AsyncIterator[bytes], size: int | None) -> AsyncIterator[Path]:
    """Returns a context with a folder that has one safetensors file, written from `parts` as they arrive. `size`: bytes
    in all, if known.

    Raises NoRoom.
    """
    with private_dir("weights") as folder:
        if size is not None and size > shutil.disk_usage(folder).free:
            raise NoRoom(f"The server's disk has no room for {WEIGHTS}.")
        with room_for(WEIGHTS), (folder / "tensors.safetensors").open("wb", buffering=WRITE_BYTES) as file:
            async for part in parts:
                await asyncio.to_thread(file.write, part)
        yield folder
