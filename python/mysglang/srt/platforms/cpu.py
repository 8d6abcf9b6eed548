"""CPU: everything on the host. No streams; an event is over when it is made.

Graphs are recordings of what a step calls (`mysgl_kernel.cpu.recording`): without the rest of its Python a step of the
embedded model takes less than half of the time.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from mysglang.srt.platforms.interface import (
    CannotCapture,
    DeviceMemory,
    Event,
    Graph,
    GraphRecorder,
    Platform,
    SideQueue,
)
from mysglang.srt.platforms.profile import HOST, DeviceProfile
from mysglang.srt.utils.hardware import CGROUP_LIMITS, usable_cores

CGROUP_USAGE = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))


GRAPH_MAX_BS = 16
"""In larger steps Python takes little of the time, and each graph has its own memory."""

T = TypeVar("T")


class CpuPlatform(Platform):
    """The CPU as a device."""

    name = "cpu"
    graph_steps = ((1, 1), (8, 2))  # a row of padding is computed in its turn here
    warm_up_prompts, warm_up_rows, warm_up_copies = (16,), (), ()  # nothing is compiled for a shape
    steps_are_done = True
    has_graphs = importlib.util.find_spec("mysgl_kernel") is not None
    attention_backends = ("cpu", "torch_native")
    invariant_attention_backends = ("invariant_cpu", "invariant_torch")
    sampling_backends = ("pytorch",)
    captures_compiled = False  # a recording knows our own ops

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @cached_property
    def device_name(self) -> str:
        """The processor's name and the cores this process may use."""
        return f"{_processor_name()} ({usable_cores()} cores)"

    @property
    def profile(self) -> DeviceProfile:
        return HOST

    def memory(self) -> DeviceMemory:
        """Returns the machine's memory, or the container's where that is less."""
        machine = psutil.virtual_memory()
        limit = _first_number(CGROUP_LIMITS)
        if limit is None or limit >= machine.total:
            return DeviceMemory(free=machine.available, total=machine.total)
        used = _first_number(CGROUP_USAGE) or 0
        return DeviceMemory(free=max(0, min(machine.available, limit - used)), total=limit)

    def record_event(self) -> Event:
        return Done()

    def side_queue(self) -> SideQueue:
        return NoQueue()

    def upload_bytes(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def pin(self, memory: Tensor) -> None:
        pass

    def recorder(self) -> AbstractContextManager[GraphRecorder]:
        return nullcontext(CpuRecorder())

    def default_graph_max_bs(self) -> int:
        return GRAPH_MAX_BS if self.has_graphs else 0


class Done:
    """The event of a device that is never behind the host."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def is_past(self) -> bool:
        return True

    def hold_up(self) -> None:
        pass


class NoQueue:
    """The side queue of a device that does everything at once."""

    def begin(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record_event(self) -> Event:
        return Done()


class CpuRecorder:
    """Records graphs on the CPU. Each graph has memory of its own."""

    def __init__(self) -> None:
        self._warm = False
        self.nbytes = 0

    def record(self, step: Callable[[], T]) -> tuple[Graph, T]:
        from mysgl_kernel.cpu.recording import CannotRecord, Recording

        if not self._warm:
            step()
            self._warm = True
        recording = Recording()
        try:
            with recording:
                left = step()
        except CannotRecord as error:
            raise CannotCapture(str(error)) from error
        self.nbytes += recording.nbytes
        return recording, left


def _processor_name() -> str:
    """Returns the model name of the processor from /proc/cpuinfo, for systems where platform.processor() is empty."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _first_number(paths: tuple[Path, ...]) -> int | None:
    """Returns the number in the first of these files that holds one; `max` is no number."""
    for path in paths:
        if path.exists() and (text := path.read_text(encoding="ascii").strip()).isdigit():
            return int(text)
    return None
