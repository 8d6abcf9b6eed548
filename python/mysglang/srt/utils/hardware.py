"""Facts about this machine, found without torch, so that light processes can use them.

A first answer for defaults and for early errors; the scheduler process, which does load torch, has the last word.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the bytes that a control group may use, in its second and first version."""

_NVML_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The devices that a launch may use."""

    gpu_memory: tuple[float, ...] = ()
    """GiB of each NVIDIA GPU that is visible to this process."""

    @property
    def num_gpus(self) -> int:
        return len(self.gpu_memory)


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory() -> float:
    """Returns the memory of this machine in GiB, or of the control group that this process is in, if that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits) / GIB


def detect_hardware() -> Hardware:
    """Examines this machine. Takes milliseconds; never fails."""
    return Hardware(gpu_memory=visible(_gpu_memory(), os.environ))


def visible(gpu_memory: tuple[float, ...], environment: Mapping[str, str]) -> tuple[float, ...]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves; like CUDA, stop at the first entry that names none."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return gpu_memory
    chosen: list[float] = []
    for entry in filter(None, map(str.strip, named.split(","))):
        if entry.startswith(("GPU-", "MIG-")) and gpu_memory:
            # Which one an id means is the driver's knowledge; the smallest is a safe guess for defaults.
            chosen.append(min(gpu_memory))
        elif entry.isdigit() and int(entry) < len(gpu_memory):
            chosen.append(gpu_memory[int(entry)])
        else:
            break
    return tuple(chosen)


class _Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _gpu_memory() -> tuple[float, ...]:
    """Returns the memory in GiB of each GPU that the NVIDIA driver knows of, in its order; empty without a driver."""
    nvml = _load_nvml()
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        return tuple(_memory_of(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _memory_of(nvml: ctypes.CDLL, index: int) -> float:
    device, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
        return 0.0
    if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
        return 0.0
    return float(memory.total / GIB)


def _load_nvml() -> ctypes.CDLL | None:
    for name in _NVML_NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
