"""UpdateGroup: processes of a trainer and of servers, in which rank 0 broadcasts tensors to the others.

Members meet at a TCP address. The keys under which they find one another are those of torch's own groups with a prefix
of the group's name, as trainers for SGLang make them. Blocks only where it says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

POLL_S = 0.0005


class UpdateGroup:
    """A group that this process has joined. `leave` it in the end."""

    def __init__(self, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout_s: float):
        """Waits for all members. Raises torch's RuntimeError or ValueError if they do not join within `timeout_s`
        seconds.
        """
        timeout = timedelta(seconds=timeout_s)
        host = f"[{address}]" if ":" in address else address
        store, rank, world_size = next(rendezvous(f"tcp://{host}:{port}", rank, world_size, timeout=timeout))
        store.set_timeout(timeout)
        # torch.distributed has one default group in a process. This group exists beside it, and only the helper can
        # make such a group.
        group, _ = distributed_c10d._new_process_group_helper(
            world_size,
            rank,
            [],
            backend,
            distributed_c10d.PrefixStore(name, store),
            group_name=name,  # type: ignore[arg-type]  # a NewType of str in some versions
            timeout=timeout,
        )
        distributed_c10d._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
        self._group = group
        self._timeout_s = timeout_s
        self.on_cpu = backend == "gloo"
        """True if tensors must be on the CPU."""

    def broadcast(self, tensors: Sequence[Tensor], pulse: Callable[[], None]) -> None:
        """Broadcasts rank 0's tensors; the others receive into theirs. All give the same shapes and dtypes in the same
        order.

        Waits until all are there. Raises RuntimeError, or TimeoutError, after which the group is of no use.
        """
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        works = [self._group.broadcast([tensor], options) for tensor in tensors]
        deadline = time.monotonic() + self._timeout_s
        for work in works:
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no weights came for {self._timeout_s:g} s")
                pulse()
                time.sleep(POLL_S)
            work.wait()
        if not self.on_cpu:
            torch.cuda.synchronize()

    def leave(self) -> None:
        """Leaves the group, and frees its resources."""
        dist.destroy_process_group(self._group)
