"""Control messages about the weights of a running engine and the memory that it occupies. Each is answered by a
ControlReqOutput.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from mysglang.srt.errors import InvalidRequest

FIRST_VERSION = "default"
"""SGLang's name for the weights that a server started with."""

MAX_ROWS = 100_000
"""Limit for the rows of a tensor that one answer has."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Size = Annotated[int, msgspec.Meta(ge=0)]


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every weight update, however the weights arrive."""

    abort_all_requests: bool = False
    """If true, open requests are ended; otherwise they finish first."""
    flush_cache: bool = True
    """If true, keys and values that were computed with the old weights are dropped."""
    weight_version: str | None = None
    """The name of the new weights; None keeps the old one."""


class UpdateWeightsReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for an update of the weights from a safetensors file or a checkpoint's directory."""

    id: int
    path: str
    """Path on the scheduler's machine."""
    whole: bool
    """True if it is a checkpoint of the whole model, with its config."""
    update: WeightUpdate


class InitWeightsUpdateGroupReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the engine to join a group of processes whose rank 0 will broadcast weights.

    Raises InvalidRequest for a rank outside of the group.
    """

    id: int
    master_address: str
    master_port: Port
    rank_offset: Annotated[int, msgspec.Meta(ge=1)]
    """This engine's rank; with several schedulers, that of the first."""
    world_size: Annotated[int, msgspec.Meta(ge=2)]
    group_name: str
    backend: Literal["nccl", "gloo"]

    def __post_init__(self) -> None:
        if self.rank_offset >= self.world_size:
            raise InvalidRequest("rank_offset must be less than world_size.", param="rank_offset")


class DestroyWeightsUpdateGroupReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Tells the scheduler to leave a group for weight updates."""

    id: int
    group_name: str


class UpdateWeightsFromDistributedReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for the weights that rank 0 of a group broadcasts now, one tensor after another. Raises InvalidRequest
    unless each tensor has a name, a dtype and a shape.
    """

    id: int
    names: Annotated[list[str], msgspec.Meta(min_length=1)]
    dtypes: list[str]
    shapes: list[list[Size]]
    group_name: str
    update: WeightUpdate

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise InvalidRequest("names, dtypes and shapes must be equally many.", param="names")


class UpdateWeightVersionReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Changes the version name of the weights, and nothing else."""

    id: int
    new_version: str
    abort_all_requests: bool = False


class GetWeightsByNameReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for the first rows of a tensor, which come as `details["parameter"]`."""

    id: int
    name: str
    truncate_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]


class CheckWeightsReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for checksums of all tensors. checksum: report them, as `details["checksums"]`. snapshot: keep them.
    compare: with those kept.
    """

    id: int
    action: Literal["checksum", "snapshot", "compare"]


class SaveShardedModelReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks each rank to write its part of the model to files."""

    id: int
    path: str
    """An existing directory on the scheduler's machine."""
    pattern: str
    """Pattern of the file names, with {rank} and {part}."""
    max_size: int | None
    """Limit of a file in bytes; None: each rank writes one file."""
    saved: str
    """A random name of this save."""


MemoryTag: TypeAlias = Literal["weights", "kv_cache", "cuda_graph"]
Tags: TypeAlias = Annotated[list[MemoryTag], msgspec.Meta(min_length=1)]
MEMORY_TAGS: tuple[MemoryTag, ...] = ("weights", "kv_cache", "cuda_graph")


class ReleaseMemoryOccupationReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the engine to release memory until it is resumed. Only an idle engine can."""

    id: int
    tags: Tags


class ResumeMemoryOccupationReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the engine to take memory again, with its content: the weights, and an empty cache."""

    id: int
    tags: Tags


class SlowDownReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the engine to sleep before each step, to see what a slower engine does; None ends that."""

    id: int
    forward_sleep_time: float | None
    """Seconds."""


WeightCommand: TypeAlias = (
    UpdateWeightsReq
    | InitWeightsUpdateGroupReq
    | DestroyWeightsUpdateGroupReq
    | UpdateWeightsFromDistributedReq
    | UpdateWeightVersionReq
    | GetWeightsByNameReq
    | CheckWeightsReq
    | SaveShardedModelReq
    | ReleaseMemoryOccupationReq
    | ResumeMemoryOccupationReq
    | SlowDownReq
)
