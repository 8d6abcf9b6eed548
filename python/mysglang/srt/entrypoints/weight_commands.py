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

from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.errors import ConfigError, InvalidRequest, NoRoom
from mysglang.srt.messages.control import ControlReqOutput
from mysglang.srt.messages.weights import UpdateWeightsReq, WeightUpdate
from mysglang.srt.utils.checkpoint_files import find_weights
from mysglang.srt.utils.disk import room_for
from mysglang.srt.utils.hf import resolve_model_path
from mysglang.srt.utils.private_dir import private_dir

PATIENCE_S = 3600.0
"""Seconds for open requests to end and for weights to be read. If the engine dies, the wait ends."""

WRITE_BYTES = 4 << 20

WEIGHTS = "these weights"

DEFAULT_GROUP = "weight_update_group"
"""SGLang's name for the group of a trainer."""


async def update_from_disk(
    manager: Manager, model_path: str, update: WeightUpdate, load_format: str = "auto"
) -> ControlReqOutput:
    """Serve the checkpoint at `model_path`, a directory or a repository. Raises InvalidRequest if there is none in that
    format, which is `auto` or `safetensors`.
    """
    try:
        folder = await asyncio.to_thread(resolve_model_path, model_path, load_format=load_format)
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
