"""CUDA: an NVIDIA GPU through torch. All steps of a process run on one stream: order there is order on the device.

What runs beside them, copies of KV pages, has streams of its own, and events between these and that of the steps.
"""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

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
from mysglang.srt.platforms.profile import DeviceProfile, profile_of
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.process import paused_gc

T = TypeVar("T")

# (less than this much device memory, largest decode graph); the last row is for all that is bigger.
GRAPH_MAX_BS_BY_MEMORY = (
    (20 * GIB, 8),
    (35 * GIB, 48),
    (60 * GIB, 32),
    (100 * GIB, 256),
    (1 << 62, 512),
)


def cuda_is_available() -> bool:
    """True if this torch can use a GPU on this machine."""
    return torch.cuda.is_available()


@cache
def capture_stream() -> torch.cuda.Stream:
    """Returns the stream of all captures. One for each time would keep 32 MiB more: cuBLAS keeps a workspace for every
    stream that it was called on.
    """
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def unpin(address: int) -> None:
    """Unregisters memory that `CudaPlatform.pin` registered with the device."""
    torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]


class StreamEvent:
    """An event of one stream. The stream is stored, because looking up the current one takes longer than recording."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.record()

    def record(self) -> None:
        self._event.record(self._stream)

    def synchronize(self) -> None:
        self._event.synchronize()

    def is_past(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def hold_up(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)


class SideStream:
    """A side stream, which waits for the steps' stream only when asked to."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    @contextmanager
    def begin(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def record_event(self) -> Event:
        return StreamEvent(self._stream)


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """A captured step. It keeps the step, because replays read the tensors that the step was given when it was made."""

    _graph: torch.cuda.CUDAGraph
    _step: Callable[[], object]

    def replay(self) -> None:
        self._graph.replay()


class CudaRecorder:
    """Records CUDA graphs whose memory comes from one pool."""

    def __init__(self, free: Callable[[], int]) -> None:
        """`free` returns the number of free bytes on the device."""
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._checked = False
        self._free = free
        self._free_before = free()

    @property
    def nbytes(self) -> int:
        return max(0, self._free_before - self._free())

    def record(self, step: Callable[[], T]) -> tuple[Graph, T]:
        step()
        if not self._checked:
            # A capture that fails would leave torch's allocator and its random generator as if it still went on.
            check_waits_for_nothing(step)
            self._checked = True
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # torch.cuda.graph is not used: it collects garbage and empties caches before every capture. During the capture,
        # no garbage may be collected: CUDA lets no graph or event be destroyed then.
        with paused_gc():
            graph.capture_begin(pool=self._pool)
            try:
                left = step()
            finally:
                graph.capture_end()
        return CudaGraph(graph, step), lent(left)


@dataclass(frozen=True, slots=True)
class Lent:
    """Memory as CUDA's array interface describes it. A tensor that is made of it does not own it."""

    __cuda_array_interface__: dict[str, Any]


def lent(left: T) -> T:
    """Returns the tensors that a captured step left, alone or in a named tuple, without owning their memory. So the
    captures that follow in the same pool may use it: results are read before another graph is replayed.
    """
    if isinstance(left, tuple):
        parts: Any = type(left)
        return cast(T, parts(*map(lent, left)))
    if not isinstance(left, Tensor) or not left.is_contiguous() or not left.numel():
        return left
    interface = {"shape": (left.nbytes,), "typestr": "|u1", "data": (left.data_ptr(), False), "version": 3}
    return cast(T, torch.as_tensor(Lent(interface), device=left.device).view(left.dtype).view(left.shape))


def check_waits_for_nothing(step: Callable[[], object]) -> None:
    """Runs the step. Raises CannotCapture if the host waits for the device in it, as a capture does not allow: to read
    a number, or to copy from memory that is not pinned.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"the host waits for the device in {place.name} ({Path(place.filename).name}, line {place.lineno})"
        raise CannotCapture(reason) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


class CudaPlatform(Platform):
    """The current CUDA device."""

    name = "cuda"
    has_graphs = True
    # Tiles of attention have up to 16, 32 or 64 queries. Products of one row, of two and of a few are kernels of their
    # own, and so are greedy tokens of many rows. Keys of latent rows are cut by the number of rows and heads.
    warm_up_prompts, warm_up_rows, warm_up_copies = (16, 32, 64), (1, 2, 3, 6, 8, 16, 32, 64, 128), (4, 32, 256)
    steps_are_done = False
    graph_steps = ((1, 1), (2, 2), (4, 4), (16, 8), (256, 32))
    attention_backends = ("sgl_kernel", "flashinfer", "triton", "torch_native")
    invariant_attention_backends = ("invariant_triton",)
    sampling_backends = ("triton", "pytorch")
    captures_compiled = True

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name()

    @property
    def profile(self) -> DeviceProfile:
        return profile_of(self.device_name)

    def memory(self) -> DeviceMemory:
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(free=free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated(), total=total)

    def record_event(self) -> Event:
        return StreamEvent(torch.cuda.default_stream())

    def side_queue(self) -> SideQueue:
        return SideStream()

    def upload_bytes(self, nbytes: int) -> Tensor:
        """Allocates pinned bytes. The caching host allocator hands a block out again only when the copies from it are
        done.
        """
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def pin(self, memory: Tensor) -> None:
        # torch would take a power of two of pinned memory, so up to twice as much of what may be most of the machine.
        address = memory.data_ptr()
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0))  # type: ignore[no-untyped-call]
        # Unpin the memory: otherwise the next owner of the same addresses could not pin them. At the end of the
        # process, all of it is released.
        weakref.finalize(memory, unpin, address).atexit = False

    @contextmanager
    def recorder(self) -> Iterator[GraphRecorder]:
        stream = capture_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield CudaRecorder(lambda: self.memory().free)
        torch.cuda.current_stream().wait_stream(stream)

    def default_graph_max_bs(self) -> int:
        total = self.memory().total
        return next(size for below, size in GRAPH_MAX_BS_BY_MEMORY if total < below)
