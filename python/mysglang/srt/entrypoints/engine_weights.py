"""EngineWeights: the weights of an Engine, changed and read by the program that it runs in.

A verb that changes something returns whether it was done, and what was done or why not, as SGLang's do. Tensors are
torch's; this file asks for torch only when it is given some.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mysglang.srt.entrypoints.front import Manager
from mysglang.srt.entrypoints.weight_commands import (
    DEFAULT_GROUP,
    PATIENCE_S,
    DiskFormat,
    copy_config,
    private_folder,
    shard_place,
    update_from_disk,
    update_from_folder,
)
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.messages.control import Command, ControlReqOutput
from mysglang.srt.messages.weights import (
    CheckWeightsReq,
    DestroyWeightsUpdateGroupReq,
    GetWeightsByNameReq,
    InitWeightsUpdateGroupReq,
    MemoryTag,
    ReleaseMemoryOccupationReq,
    ResumeMemoryOccupationReq,
    SaveShardedModelReq,
    UpdateWeightsFromDistributedReq,
    UpdateWeightVersionReq,
    WeightUpdate,
)

Waits = Callable[[Awaitable[ControlReqOutput]], ControlReqOutput]
"""Runs work of the engine's event loop to its end."""


class EngineWeights:
    """Reads and changes the weights of an engine.

    `update` of each method: abort_all_requests, flush_cache, weight_version; see `WeightUpdate`.
    """

    def __init__(self, manager: Manager, wait: Waits) -> None:
        self._manager = manager
        self._wait = wait

    def from_disk(self, model_path: str, load_format: DiskFormat | None = None, **update: Any) -> tuple[bool, str]:
        """Loads the checkpoint of the same model in a directory or repository. load_format: `auto` or `safetensors`;
        None: auto.
        """
        formats = (None, *get_args(DiskFormat))
        if load_format not in formats:
            message = f"load_format: must be one of {', '.join(map(str, formats))}, not {load_format!r}."
            raise InvalidRequest(message, param="load_format")
        change = WeightUpdate(**update)
        try:
            return _result(self._wait(update_from_disk(self._manager, model_path, change, load_format or "auto")))
        except InvalidRequest as error:
            return False, error.message

    def from_tensor(self, named_tensors: Iterable[tuple[str, Any]], **update: Any) -> tuple[bool, str]:
        """Replaces these tensors, by their names in a checkpoint. Raises InvalidRequest for a value that is no tensor
        with a name, and for a name that occurs twice.
        """
        from safetensors.torch import save_file

        with private_folder() as folder:
            save_file(_on_the_host(named_tensors), folder / "tensors.safetensors")
            return _result(self._wait(update_from_folder(self._manager, folder, WeightUpdate(**update))))

    def from_distributed(
        self,
        names: list[str],
        dtypes: list[str],
        shapes: list[list[int]],
        group_name: str = DEFAULT_GROUP,
        **update: Any,
    ) -> tuple[bool, str]:
        """Receives the tensors that rank 0 of the group broadcasts in this order."""
        change = WeightUpdate(**update)
        return _result(
            self._command(
                lambda number: UpdateWeightsFromDistributedReq(
                    id=number, names=names, dtypes=dtypes, shapes=shapes, group_name=group_name, update=change
                )
            )
        )

    def init_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str = DEFAULT_GROUP,
        backend: Literal["nccl", "gloo"] = "nccl",
    ) -> tuple[bool, str]:
        """Join a trainer's group; returns when all members are there."""
        return _result(
            self._command(
                lambda number: InitWeightsUpdateGroupReq(
                    id=number,
                    master_address=master_address,
                    master_port=master_port,
                    rank_offset=rank_offset,
                    world_size=world_size,
                    group_name=group_name,
                    backend=backend,
                )
            )
        )

    def destroy_group(self, group_name: str = DEFAULT_GROUP) -> tuple[bool, str]:
        """Leaves the group, or gives it up if it has not formed yet."""
        return _result(self._command(lambda number: DestroyWeightsUpdateGroupReq(id=number, group_name=group_name)))

    def rename(self, new_version: str, *, abort_all_requests: bool = False) -> tuple[bool, str]:
        """Gives the weights another version name."""
        return _result(
            self._command(
                lambda number: UpdateWeightVersionReq(
                    id=number, new_version=new_version, abort_all_requests=abort_all_requests
                )
            )
        )

    def release_memory(self, tags: Sequence[MemoryTag]) -> tuple[bool, str]:
        """Releases the memory of these tags. The engine serves no request until all of it is resumed."""
        return _result(self._command(lambda number: ReleaseMemoryOccupationReq(id=number, tags=list(tags))))

    def resume_memory(self, tags: Sequence[MemoryTag]) -> tuple[bool, str]:
        """Takes the memory of these tags again, with the weights that were there."""
        return _result(self._command(lambda number: ResumeMemoryOccupationReq(id=number, tags=list(tags))))

    def by_name(self, name: str, truncate_size: int = 100) -> list[Any]:
        """Returns the first rows of a tensor, as numbers. Raises InvalidRequest if there is none of that name."""
        reply = self._command(lambda number: GetWeightsByNameReq(id=number, name=name, truncate_size=truncate_size))
        rows: list[Any] = reply.carried_out().details["parameter"]
        return rows

    def checksums(self) -> dict[str, str]:
        """Returns the SHA-256 of every tensor's bytes, in the dtype of the model."""
        reply = self._command(lambda number: CheckWeightsReq(id=number, action="checksum"))
        found: dict[str, str] = reply.carried_out().details["checksums"]
        return found

    def save_sharded(self, model: Path, path: Path, pattern: str | None, max_size: int | None) -> None:
        """Writes the model, whose config and tokenizer are in the directory `model`, to `path`. Raises
        InvalidRequest.
        """
        place = shard_place(path, pattern, max_size)
        copy_config(model, path)
        self._command(
            lambda number: SaveShardedModelReq(
                id=number, path=place.path, pattern=place.pattern, max_size=place.max_size, saved=place.saved
            )
        ).carried_out()

    def _command(self, make: Callable[[int], Command]) -> ControlReqOutput:
        return self._wait(self._manager.command(make, patience_s=PATIENCE_S))


def _on_the_host(named_tensors: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns copies of the tensors on the CPU: those that share memory cannot be written to a file. Raises
    InvalidRequest.
    """
    from torch import Tensor

    found: dict[str, Any] = {}
    for name, tensor in _pairs(named_tensors):
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.is_meta:
            what = "a tensor without values" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise _no_pairs(f"{name!r} and {what}")
        if name in found:
            raise InvalidRequest(f"named_tensors: {name} occurs twice.", param="named_tensors")
        found[name] = tensor.detach().to_dense().to("cpu", copy=True).contiguous()
    return found


def _pairs(named_tensors: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields the pairs of an argument that may be anything. Raises InvalidRequest."""
    if not isinstance(named_tensors, Iterable):
        raise _no_pairs(type(named_tensors).__name__)
    for pair in named_tensors:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _no_pairs(f"{pair!r:.100}")
        yield pair[0], pair[1]


def _no_pairs(what: str) -> InvalidRequest:
    message = f"named_tensors: must be pairs of a name and a tensor with values, not {what}."
    return InvalidRequest(message, param="named_tensors")


def _result(reply: ControlReqOutput) -> tuple[bool, str]:
    return reply.success, reply.message
