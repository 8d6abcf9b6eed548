"""The scheduler's requests to a running model other than steps: about its weights, and the memory that it occupies.

    ModelWeights    other values for the weights, and what they are now
    Occupation      memory that the worker takes of the machine, which can be given back for a while and taken again

Plain names, paths and numbers. The caller makes sure that no step is launched during a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.utils.sharded_state import ShardPlace

Pulse: TypeAlias = Callable[[], None]
"""Called again and again while the work goes on, which may take minutes: a sign of life can be given."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Facts about a tensor that will arrive from elsewhere."""

    name: str
    dtype: str
    """float32, bfloat16 or float16."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group of processes of which rank 0 sends weights."""

    name: str
    master_address: str
    master_port: int
    rank: int
    """Rank of this process."""
    world_size: int
    backend: str
    """nccl or gloo."""


class ModelWeights(Protocol):
    """Reads and changes the weights of a model. Names are those of a checkpoint. Every method raises InvalidRequest,
    saying what is wrong, or Conflict, before it changes anything.
    """

    def update_from_files(self, path: str, *, whole: bool, pulse: Pulse) -> int:
        """Updates weights from a safetensors file, or all such files in a directory; returns the number of tensors.

        With `whole` it is a checkpoint of the same model with its config.json; else any of its tensors.
        """
        ...

    def join_group(self, group: GroupFacts) -> Future[None]:
        """Begins to join a group. The future is done when all members have joined, or has the error as its
        exception.
        """
        ...

    def leave_group(self, name: str) -> None:
        """Leave the group, or give up one that has not formed yet."""
        ...

    def receive(self, tensors: Sequence[TensorFacts], group: str, pulse: Pulse) -> int:
        """Receives values that rank 0 of a joined group broadcasts, one tensor after another."""
        ...

    def read(self, name: str, count: int) -> list[Any]:
        """Returns the first `count` rows of a tensor, as numbers."""
        ...

    def checksums(self, pulse: Pulse) -> dict[str, str]:
        """Returns the SHA-256 of each tensor's bytes, in the dtype of the model."""
        ...

    def save_sharded(self, place: ShardPlace, pulse: Pulse) -> int:
        """Writes this rank's part of the model for `--load-format sharded_state`; returns the number of files."""
        ...


class NoWeights:
    """The null object: every request is refused, with the reason."""

    def __init__(self, reason: str = "This engine has no weights.") -> None:
        self._reason = reason

    def update_from_files(self, path: str, *, whole: bool, pulse: Pulse) -> int:
        self._refuse()

    def join_group(self, group: GroupFacts) -> Future[None]:
        self._refuse()

    def leave_group(self, name: str) -> None:
        self._refuse()

    def receive(self, tensors: Sequence[TensorFacts], group: str, pulse: Pulse) -> int:
        self._refuse()

    def read(self, name: str, count: int) -> list[Any]:
        self._refuse()

    def checksums(self, pulse: Pulse) -> dict[str, str]:
        self._refuse()

    def save_sharded(self, place: ShardPlace, pulse: Pulse) -> int:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(self._reason)


class Occupation(Protocol):
    """Releases and restores memory by tag: weights, kv_cache, cuda_graph. Raises InvalidRequest with the reason, before
    anything has changed.
    """

    @property
    def released(self) -> frozenset[str]:
        """The tags whose memory is released now."""
        ...

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        """Releases the memory of these tags too; returns the number of bytes."""
        ...

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        """Allocate the tags again: the same weights, and empty keys and values. A tag for which memory is too short
        stays released.
        """
        ...


class FixedOccupation:
    """A null object for an engine that cannot release memory."""

    released: frozenset[str] = frozenset()

    def __init__(self, reason: str = "This engine cannot give its memory back.") -> None:
        self._reason = reason

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        self._refuse()

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(self._reason)
