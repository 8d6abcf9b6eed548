"""Reports of a prefix cache about its pages: which prefixes are cached, and which no longer are.

A `PageListener` hears of every change. `KvEventLog` is the one that writes events for routers.

A page is a block. Its name is a hash of its tokens and of the block before it, so equal prefixes have equal names
everywhere; the first block of a namespace goes on from the namespace's own. Events have the fields of SGLang's, of
which vLLM's are the first, and are arrays on the wire as there: a name, then the fields in order. Knows no socket:
`managers/kv_event_publisher.py` sends what is taken here.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from mysglang.srt.forward.worker_batch import Bools, Ints, Longs
from mysglang.srt.mem_cache.tree_node import TreeNode, namespace_of


class PageListener(Protocol):
    """Receives every change of the cached prefixes, in order. A split is not a change, because the pages stay the
    same.
    """

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        """Reports that the tokens `ids` continue from the end of `node`, in as many whole pages. All but the first
        `known` are new.

        The cache had the first `known` already, in other pages than those given.
        """
        ...

    def removed(self, pages: Ints) -> None:
        """Reports that these pages can no longer be matched. Pages that were hidden before may be reported again."""
        ...

    def cleared(self) -> None:
        """Reports that the cache was emptied: no page can be matched any more."""
        ...


class NoListener:
    """A null object: KV events are off, so changes of the cache are not recorded."""

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        pass

    def removed(self, pages: Ints) -> None:
        pass

    def cleared(self) -> None:
        pass


GPU = "GPU"
"""The medium of pages that attention reads, in the host's memory though it is without a GPU."""
CPU = "CPU"
"""Medium of pages in the host tier: they are copied back before they are read."""


class BlockStored(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Event: consecutive blocks can be matched from now on."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """Hash of the block before the first; None at the beginning of a namespace."""
    token_ids: list[int]
    """Tokens of all these blocks."""
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    """The namespace; None for that of requests that name none."""


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Event: blocks cannot be matched any more."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Event: the cache was emptied."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events since the last batch, in order."""

    ts: float
    """Seconds since 1970."""
    events: list[KvEvent]
    data_parallel_rank: int | None = None


class KvEventLog:
    """The PageListener that turns changes into events and keeps them until they are taken.

    Pages are reported when they are planned, like all sharing here: at most one step before they are computed.
    """

    def __init__(self, num_pages: int, page_size: int, medium: str = GPU, events: list[KvEvent] | None = None) -> None:
        """`events`: the list to append to; None: a new list."""
        self._page_size = page_size
        self._medium = medium
        self._hashes: Longs = np.zeros(num_pages + 1, dtype=np.int64)
        """Page -> hash; valid while the page is reported as stored."""
        self._reported: Bools = np.zeros(num_pages + 1, dtype=np.bool_)
        self._events: list[KvEvent] = [] if events is None else events

    def of_host(self, num_pages: int) -> KvEventLog:
        """Returns a log for the pages in host memory. Its events and those of this log share one order."""
        return HostEventLog(num_pages, self._page_size, CPU, self._events)

    def take(self) -> list[KvEvent]:
        """Returns the events since the last call, in order."""
        events = self._events.copy()
        self._events.clear()
        return events

    def stored(self, node: TreeNode, ids: Ints, pages: Ints, known: int) -> None:
        namespace = namespace_of(node)
        parent = first_hash(namespace) if node.parent is None else int(self._hashes[node.value[-1]])
        size = self._page_size
        hashes = block_hashes(parent, ids, size)
        above = hashes[known - 1] if known else parent
        is_first = node.parent is None and not known
        self._hashes[pages[known:]] = hashes[known:]
        self._reported[pages[known:]] = True
        self._events.append(
            BlockStored(
                hashes[known:],
                None if is_first else above,
                ids[known * size : len(pages) * size].tolist(),
                size,
                medium=self._medium,
                cache_salt=namespace or None,
            )
        )

    def removed(self, pages: Ints) -> None:
        gone = pages[self._reported[pages]]
        if len(gone):
            self._reported[gone] = False
            self._events.append(BlockRemoved(self._hashes[gone].tolist(), medium=self._medium))

    def cleared(self) -> None:
        self._reported[:] = False
        self._events.append(AllBlocksCleared())


class HostEventLog(KvEventLog):
    """Event log of a tier below another cache. It is cleared together with that cache, which reports the clearing."""

    def cleared(self) -> None:
        self._reported[:] = False


def first_hash(namespace: str) -> int:
    """Returns the hash that the first block of a namespace follows."""
    return _to_int(sha256(namespace.encode()).digest())


def block_hashes(parent: int, ids: Ints, block_size: int) -> list[int]:
    """Returns the names of the whole blocks of `ids`, which follow the block named `parent`.

    Each is the first eight bytes, as a signed big-endian number, of the SHA-256 of the name before (so written, too)
    and the block's tokens as little-endian int32.
    """
    hashes: list[int] = []
    data = np.ascontiguousarray(ids, dtype="<i4").tobytes()
    width = 4 * block_size
    before = parent.to_bytes(8, "big", signed=True)
    for start in range(0, len(data) // width * width, width):
        before = sha256(before + data[start : start + width]).digest()[:8]
        hashes.append(_to_int(before))
    return hashes


def _to_int(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)
