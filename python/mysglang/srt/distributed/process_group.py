"""ProcessGroup: ranks that are processes, over torch's communication libraries. The one place that chooses a library.

    device                        library   the bytes of tensors go over
    cpu                           Gloo      TCP on the loopback address
    cuda, a GPU for each rank     NCCL      NVLink, PCIe or shared memory, as NCCL finds them
    cuda, one GPU for all ranks   Gloo      memory of the host, then as on a CPU: for tests, not for speed

Ranks find one another through a file in the server's private directory. Gloo listens on a port of 127.0.0.1 while the
group lives; nothing listens on another interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from mysglang.srt.distributed.groups import SOLO, Group
from mysglang.srt.distributed.ranks import Place, RankContext
from mysglang.srt.errors import PeerLost

PATIENCE = timedelta(days=30)
"""How long a rank waits for its peers. Time does not end a wait: a peer that dies closes its connection, and whether a
peer that says nothing is frozen, or the whole machine was asleep, only the watchdog of the main process can tell."""

LOOPBACK = "127.0.0.1"

TAG = 0
"""Tag of all messages between members. A group has one kind of message, which arrives in order."""


ON_CPU = "ranks exchange over Gloo, and a step that is recorded on a CPU cannot contain that"
"""Why a group without a GPU is in no captured step."""

GONE = "another rank of this server is gone"


class Work(Protocol):
    """A collective operation that is under way."""

    def wait(self) -> bool: ...


def _gloo(store: Store, place: Place) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack its options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = PATIENCE
    # One thread keeps collectives in their order, and a rank starts no second one before the first is done.
    options._threads = 1
    return gloo(store, place.rank, place.size, options)


def _nccl(store: Store, place: Place) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = PATIENCE
    return nccl(store, place.rank, place.size, options)


class Sending:
    """A tensor on its way to another rank, kept until it is there."""

    __slots__ = ("_tensor", "_work")

    def __init__(self, work: Work, tensor: Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def wait(self) -> None:
        """Waits until the tensor is sent; on CUDA, the current stream waits instead of the host. Raises PeerLost."""
        _finish(self._work)


def tensor_parallel_group(ranks: RankContext) -> Group:
    """Returns the ranks that share each layer with this one. Waits until all of them have joined; call it once in a
    process.
    """
    return SOLO if ranks.tp.size == 1 else join(ranks, f"tp{ranks.pp.rank}", ranks.tp)


def join(ranks: RankContext, name: str, place: Place) -> ProcessGroup | ThroughHost:
    """Joins the group of that name, in which this process has that place. Waits for the other members."""
    # -1: the file is not counted on to have a fixed number of users; several groups meet in it.
    store = FileStore(ranks.meeting_file, -1)
    store.set_timeout(PATIENCE)
    meeting = PrefixStore(name, store)
    if ranks.transport == "nccl":
        return ProcessGroup(_nccl(meeting, place), place, torch.device("cuda", ranks.gpu))
    over_cpu = ProcessGroup(_gloo(meeting, place), place, torch.device("cpu"))
    return over_cpu if ranks.transport == "gloo" else ThroughHost(over_cpu)


class ProcessGroup:
    """A group of ranks over torch.distributed (a `groups.Group`)."""

    def __init__(self, group: Any, place: Place, device: torch.device) -> None:
        """`group`: a group of torch's, for tensors on `device`."""
        # A recording on the CPU has torch's ops and our kernels; Gloo's exchange is neither.
        self.not_captured = ON_CPU if device.type == "cpu" else ""
        self.rank = place.rank
        self.size = place.size
        self._group = group
        self._device = device
        self._first = dist.BroadcastOptions()
        self._first.rootRank, self._first.rootTensor = 0, 0

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._done(lambda: self._group.allreduce([x]))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        parts = self._gathered(x.reshape(-1, width))
        return parts.transpose(0, 1).reshape(*x.shape[:-1], self.size * width)

    def broadcast(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._done(lambda: self._group.broadcast([x], self._first))
        return x

    def send(self, x: Tensor, to: int) -> Sending:
        """Begin to send x to that member, which must receive what it is sent in order. x must not change before the
        sending is done.
        """
        x = x.contiguous()
        return Sending(_begun(lambda: self._group.send([x], to, TAG)), x)

    def receive(self, x: Tensor, source: int) -> Tensor:
        """Receive the next tensor of that member into x. On CUDA the current stream waits for it."""
        self._done(lambda: self._group.recv([x], source, TAG))
        return x

    def smallest(self, values: Sequence[int]) -> list[int]:
        own = torch.tensor(values, dtype=torch.int64, device=self._device)
        least: list[int] = self._gathered(own).amin(dim=0).tolist()
        return least

    def _gathered(self, x: Tensor) -> Tensor:
        """Returns [size, *x.shape]: the tensors of all ranks."""
        flat = x.contiguous().view(-1)
        parts = torch.empty(self.size * len(flat), dtype=x.dtype, device=x.device)
        if len(flat):  # no rank has anything then
            self._done(lambda: self._group._allgather_base(parts, flat))
        return parts.view(self.size, *x.shape)

    def _done(self, begin: Any) -> None:
        """Run a collective. On CUDA it is queued on the current stream; on a CPU it is done when this returns."""
        _finish(_begun(begin))


class ThroughHost:
    """A group of ranks that share a GPU (a `groups.Group`): tensors go through memory of the host.

    Each verb waits until the device has computed its tensor, so host and device take turns.
    """

    not_captured = "ranks share a device (--gpu-id-step 0), and a graph cannot contain their exchange through the host"

    def __init__(self, inner: ProcessGroup) -> None:
        """`inner`: a group of the same ranks, for tensors on the CPU."""
        self.rank = inner.rank
        self.size = inner.size
        self._inner = inner

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(self._inner.all_reduce(x.cpu()))

    def all_gather(self, x: Tensor) -> Tensor:
        return self._inner.all_gather(x.cpu()).to(x.device)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self._inner.broadcast(x.cpu()))

    def send(self, x: Tensor, to: int) -> Sending:
        return self._inner.send(x.cpu(), to)

    def receive(self, x: Tensor, source: int) -> Tensor:
        return x.copy_(self._inner.receive(torch.empty(x.shape, dtype=x.dtype), source))

    def smallest(self, values: Sequence[int]) -> list[int]:
        return self._inner.smallest(values)


def _begun(begin: Callable[[], Work]) -> Work:
    try:
        return begin()
    except RuntimeError as error:
        raise PeerLost(GONE) from error


def _finish(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerLost(GONE) from error
