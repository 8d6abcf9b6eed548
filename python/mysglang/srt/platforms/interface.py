"""Platform: the interface to the hardware for all code that computes. Knows devices and memory; no model, no
kernel, no server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mysglang.srt.platforms.profile import DeviceProfile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the memory that weights and KV cache live in."""

    free: int
    """Bytes that this process can still allocate."""
    total: int


class Event(Protocol):
    """A point in the device's work."""

    def record(self) -> None:
        """Moves this point behind all work that has been queued so far."""
        ...

    def synchronize(self) -> None:
        """Blocks the host until the device has passed this point."""
        ...

    def is_past(self) -> bool:
        """True if the device has passed this point."""
        ...

    def hold_up(self) -> None:
        """Makes work that is queued from now on wait until the device has passed this point."""
        ...


class SideQueue(Protocol):
    """A queue of device work that runs in an order of its own, beside the steps."""

    def begin(self) -> AbstractContextManager[None]:
        """Queues work inside the block on this queue. It begins when all step work queued so far is done."""
        ...

    def record_event(self) -> Event:
        """Returns the point up to which work of this queue has been queued."""
        ...


class Graph(Protocol):
    """A captured graph: a whole step that is queued by one call. Its tensors keep their addresses."""

    def replay(self) -> None:
        """Queues the step again, with the values that its tensors have when it runs."""
        ...


class CannotCapture(Exception):
    """Raised for a step that cannot be captured in a graph, with the reason."""


class GraphRecorder(Protocol):
    """Captures steps in graphs."""

    @property
    def nbytes(self) -> int:
        """Device memory of all recorded graphs together."""
        ...

    def record(self, step: Callable[[], T]) -> tuple[Graph, T]:
        """Records the graph of a step. Returns it, and the tensors that receive the step's results in each replay.

        The step runs, so that kernels are compiled and plans made. Raises CannotCapture.
        """
        ...


class Platform(ABC):
    """One kind of hardware. The device of this process is the current one; multi-device ranks choose it at start."""

    name: str
    """Name as in `--device`, and the key under which an Op finds its implementation."""
    has_graphs: bool
    """True if steps can be captured and replayed."""
    warm_up_prompts: tuple[int, ...]
    """Lengths of prompts that together need every kernel which is compiled at first use, or chosen by length."""
    warm_up_rows: tuple[int, ...]
    """Rows of decode steps that do so."""
    warm_up_copies: tuple[int, ...]
    """Copies between states in one step that do so."""
    steps_are_done: bool
    """True if a step is complete when its launch returns, so that the host may read its results without waiting."""
    graph_steps: tuple[tuple[int, int], ...]
    """Which batch sizes to capture: from the first of a pair on, one every so many rows. A step is padded up to one."""
    attention_backends: tuple[str, ...]
    """Backends that run on this device, the best first. If one cannot do a kind of step, the next one is used."""
    invariant_attention_backends: tuple[str, ...]
    """Backends whose results do not depend on the rest of a step, the best first."""
    sampling_backends: tuple[str, ...]
    captures_compiled: bool
    """True if a captured step may run code that torch.compile made."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The torch device of all tensors."""

    @property
    @abstractmethod
    def device_name(self) -> str:
        """The vendor's name of the device."""

    @property
    @abstractmethod
    def profile(self) -> DeviceProfile:
        """The figures of this kind of device, or a stated default."""

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """Returns free and total bytes now; unused blocks of the caching allocator count as free."""

    @abstractmethod
    def record_event(self) -> Event:
        """Returns the point up to which work of the device has been queued."""

    @abstractmethod
    def side_queue(self) -> SideQueue:
        """Returns a new side queue."""

    @abstractmethod
    def upload_bytes(self, nbytes: int) -> Tensor:
        """Returns a host uint8 buffer that the device can read directly. It must not be written again after it was
        uploaded.
        """

    @abstractmethod
    def pin(self, memory: Tensor) -> None:
        """Pins host memory, so that the device can read and write it directly, for as long as the tensor lives."""

    @abstractmethod
    def recorder(self) -> AbstractContextManager[GraphRecorder]:
        """Returns a recorder for the graphs that are captured inside the block. The graphs may share memory: the output
        of a replay is valid until the next replay. Capture the largest graph first.
        """

    @abstractmethod
    def default_graph_max_bs(self) -> int:
        """Returns the largest decode batch worth a graph, by the size of the device; 0 if there are no graphs."""
