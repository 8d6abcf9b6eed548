"""CUDA: an NVIDIA GPU through torch. All work of a process runs on one stream: order there is order on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from mysglang.srt.platforms.interface import DeviceMemory, Event, Platform
from mysglang.srt.utils.hardware import GIB

# (less than this much device memory, largest decode graph); the last row is for all that is bigger.
GRAPH_MAX_BS_BY_MEMORY = (
    (20 * GIB, 8),
    (35 * GIB, 48),
    (60 * GIB, 32),
    (160 * GIB, 256),
    (1 << 62, 512),
)


def cuda_is_available() -> bool:
    """Whether this torch can use a GPU here."""
    return torch.cuda.is_available()


class StreamEvent:
    """An event of one stream; looking up the current one takes longer than recording."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.record()

    def record(self) -> None:
        self._event.record(self._stream)

    def synchronize(self) -> None:
        self._event.synchronize()


class CudaPlatform(Platform):
    """The current CUDA device."""

    name = "cuda"
    has_graphs = True
    attention_backends = ("sgl_kernel", "flashinfer", "triton", "torch_native")
    invariant_attention_backends = ("invariant_triton",)
    sampling_backends = ("triton", "pytorch")

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name()

    def memory(self) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(free=free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated(), total=total)

    def record_event(self) -> Event:
        return StreamEvent(torch.cuda.default_stream())

    def upload_bytes(self, nbytes: int) -> Tensor:
        """Pinned. The caching host allocator hands a block out again only when the copies from it are done."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def default_graph_max_bs(self) -> int:
        total = self.memory().total
        return next(size for below, size in GRAPH_MAX_BS_BY_MEMORY if total < below)
