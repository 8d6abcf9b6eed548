"""DeviceOccupation: weights, keys and values, and graphs of a worker, given back to the machine and taken again.

The tensor objects stay; only the storage behind them is released and allocated again, at another address. Graphs and
kernels of whole steps know addresses. They are therefore dropped with the first release and made again when everything
is back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from mysglang.srt.distributed.agreement import ONE_RANK, AllRanks
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import Pulse
from mysglang.srt.model_executor.live_weights import LiveWeights
from mysglang.srt.platforms.interface import Platform

WEIGHTS, KV_CACHE, GRAPHS = "weights", "kv_cache", "cuda_graph"


class Captures(Protocol):
    """Objects that hold addresses of tensors."""

    def drop(self) -> None: ...

    def restore(self) -> None: ...


class Pool(Protocol):
    """Memory of the KV cache: pages, or states."""

    def release(self) -> None:
        """Frees the memory. The tensor objects stay, but must not be used until `resume`."""
        ...

    def resume(self) -> None:
        """Allocates the memory again, at other addresses, filled with zeros. Called again if it ran out of memory."""
        ...


class DeviceOccupation:
    """Releases and restores the device memory of weights, KV cache and captures (a `forward.weights.Occupation`)."""

    def __init__(
        self,
        weights: Sequence[LiveWeights],
        pools: Sequence[Pool],
        captures: Captures,
        platform: Platform,
        ranks: AllRanks = ONE_RANK,
    ) -> None:
        """`weights` and `pools`: those of all models. If one of `ranks` cannot do something, none does it."""
        self._weights = weights
        self._pools = pools
        self._captures = captures
        self._platform = platform
        self._ranks = ranks
        self._released: set[str] = set()

    @property
    def released(self) -> frozenset[str]:
        return frozenset(self._released)

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        wanted = tags - self._released
        if not wanted:
            raise InvalidRequest("tags: all of these are released already.", param="tags")
        before = self._platform.memory().free
        self._synchronize()
        if WEIGHTS in wanted:
            # First, since only weights may refuse: those of any model, on any rank.
            with self._ranks.all_or_none():
                for weights in self._weights:
                    weights.check_release()
            for weights in self._weights:
                weights.release(pulse)
        if not self._released:
            self._captures.drop()
        if KV_CACHE in wanted:
            for pool in self._pools:
                pool.release()
        self._released |= wanted
        if self._platform.device.type == "cuda":
            torch.cuda.empty_cache()
        return max(0, self._platform.memory().free - before)

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        wanted = tags & self._released
        if not wanted:
            raise InvalidRequest("tags: none of these is released.", param="tags")
        parts: dict[str, Callable[[], None]] = {
            WEIGHTS: lambda: self._resume_weights(pulse),
            KV_CACHE: self._resume_pools,
            GRAPHS: _nothing,
        }
        for tag in (WEIGHTS, KV_CACHE, GRAPHS):
            if tag in wanted:
                # Where one rank has no memory for it, it counts as released on all, and is tried again.
                with self._ranks.all_or_none():
                    try:
                        parts[tag]()
                    except torch.OutOfMemoryError as error:
                        raise InvalidRequest(f"{tag}: there is no memory for it now: {error}", param="tags") from error
                self._released.discard(tag)
                pulse()
        if not self._released:
            self._captures.restore()

    def _resume_weights(self, pulse: Pulse) -> None:
        """Allocate the weights of all models. If memory runs out in between, the weights that were allocated stay, and
        the next call does the rest.
        """
        for weights in self._weights:
            if weights.released:
                weights.resume(pulse)

    def _resume_pools(self) -> None:
        for pool in self._pools:
            pool.resume()

    def _synchronize(self) -> None:
        """Waits until the device has finished all steps."""
        if self._platform.device.type == "cuda":
            torch.cuda.synchronize()


def _nothing() -> None:
    """Does nothing: the graphs are restored together with those of the last model."""
