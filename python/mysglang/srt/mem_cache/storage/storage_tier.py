"""StorageTier: writes the host tier's pages to storage, and searches storage for the missing part of a prompt.

    store(node)  ──▶ [writer: keys, which are missing, bytes of their pages]             once a copy to the host is done
    fetch(ids)   ──▶ [reader: keys, how many are there] ──▶ pages of the host
                 ──▶ [reader: bytes to pages, batch by batch] ──▶ the host's tree         while a request waits

Plans and the tree are the scheduler's, between steps (`learn`); whatever may wait for a disk is a runner's. Pages that
a runner reads are locked, pages that it fills are its own until it reports how far it came.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from secrets import token_hex

import numpy as np

from mysglang.srt.forward.host_pages import HostPages
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.storage.backend import StorageBackend, block_keys
from mysglang.srt.mem_cache.storage.interface import StorageNews
from mysglang.srt.mem_cache.storage.runner import Runner
from mysglang.srt.mem_cache.tree_node import NO_PAGES, TreeNode, namespace_of

MOST_STORING = 256
"""Prefixes that wait to be written; what comes beyond is dropped, and written when it is copied to the host again."""
MOST_FETCHING = 64
BATCH_BLOCKS = 8
"""After so many blocks what was read of a prefix can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits on fetching from storage: when to look there, and how long to wait."""

    block_tokens: int
    """A multiple of the page size."""
    at_least: int = 256
    """Tokens that must be lacking."""
    wait_base_s: float = 1.0
    wait_per_ki_token_s: float = 0.25


@dataclass(slots=True, eq=False)
class Storing:
    """A prefix that is being written to the storage."""

    number: int
    node: TreeNode
    pages: Ints
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Fetching:
    """A prefix that is being read from the storage (an `Arrival`)."""

    number: int
    ids: Ints
    extra_key: str
    node: TreeNode
    """The end of what the host has of it by now, locked."""
    start: int
    """Pages that it had when the search began."""
    deadline: float
    """time.monotonic()"""
    sought: bool = False
    """True if the number of available blocks is known."""
    keys: list[str] = field(default_factory=list)
    first_block: int = 0
    pages: Ints = field(default_factory=lambda: NO_PAGES)
    """Pages for the blocks that were found: those of the prefix from `start` on."""
    adopted: int = 0
    """Number of these pages that are part of the tree."""
    done: bool = False
    cancelled: bool = False


class StorageTier:
    """Moves prefixes between a host tier and a storage backend."""

    def __init__(
        self,
        host: HostTier,
        pages: HostPages,
        backend: StorageBackend,
        identity: str,
        limits: FetchLimits,
        *,
        reader: Runner,
        writer: Runner,
    ) -> None:
        """`identity`: a hash of everything that the bytes of a page depend on, except its tokens."""
        assert limits.block_tokens % host.page_size == 0
        self.stored = self.fetched = self.dropped = 0
        """Tokens."""
        self._host = host
        self._pages = pages
        self._backend = backend
        self._identity = identity
        self._limits = limits
        self._block_pages = limits.block_tokens // host.page_size
        self._reader = reader
        self._writer = writer
        self._events: SimpleQueue[StorageNews] = SimpleQueue()
        self._next = 0
        self._works: dict[int, Storing | Fetching] = {}
        """Number -> work for which news will arrive."""
        self._storing: list[Storing] = []
        self._fetching: list[Fetching] = []
        self._closed = False
        """True if the host may hold pages that another model computed."""

    # Out

    def store(self, node: TreeNode) -> None:
        """Starts storing the pages on the path to a node of the host, which can be read from now on."""
        count = node.end // self._block_pages * self._block_pages
        if self._closed or node.condemned or not count:
            return
        if len(self._storing) >= MOST_STORING:
            self.dropped += count * self._host.page_size
            return
        tree = self._host.tree
        ids, extra_key = tree.path_ids(node), namespace_of(node)
        work = Storing(self._number(), node, tree.path_pages(node)[:count])
        self._works[work.number] = work
        tree.inc_lock_ref(node)
        self._storing.append(work)
        identity = self._identity
        self._writer.submit(lambda: self._write_blocks(work, identity, extra_key, ids))

    def _write_blocks(self, work: Storing, identity: str, extra_key: str, ids: Ints) -> None:
        """Runs in the writer: write from the first missing block on."""
        written, size = 0, self._block_pages
        try:
            keys = block_keys(identity, extra_key, ids, self._limits.block_tokens)
            for index in range(self._backend.exists(keys), len(keys)):
                data = None if work.cancelled else self._pages.read(work.pages[index * size : (index + 1) * size])
                # Pages are given away only after it was cancelled, so what was read before is what they held.
                if data is None or work.cancelled or work.node.condemned or not self._backend.write(keys[index], data):
                    break
                written += 1
        finally:
            self._events.put(StorageNews(work.number, written, over=True))

    # In

    def fetch(self, ids: Ints, extra_key: str, num_tokens: int) -> Fetching | None:
        """Searches the storage for the rest of a prompt of which `num_tokens` are cached; None if that is not
        worthwhile.
        """
        count = len(ids) // self._limits.block_tokens * self._limits.block_tokens
        lacking = count - num_tokens
        if self._closed or lacking < self._limits.at_least:
            return None
        for work in self._fetching:
            if not work.cancelled and self._covers(work, ids, extra_key):
                return work
        if len(self._fetching) >= MOST_FETCHING:
            return None
        ids = ids[:count].copy()
        node, start = self._host.lock(ids, extra_key)
        deadline = time.monotonic() + self._limits.wait_base_s + self._limits.wait_per_ki_token_s * lacking / 1024
        first_block = start // self._block_pages
        work = Fetching(self._number(), ids, extra_key, node, start, deadline, first_block=first_block)
        self._works[work.number] = work
        self._fetching.append(work)
        identity = self._identity
        self._reader.submit(lambda: self._look(work, identity))
        return work

    def _covers(self, work: Fetching, ids: Ints, extra_key: str) -> bool:
        """True if it fetches the first blocks that these tokens lack."""
        end = (work.first_block + 1) * self._limits.block_tokens
        return work.extra_key == extra_key and len(ids) >= end and np.array_equal(work.ids[:end], ids[:end])

    def _look(self, work: Fetching, identity: str) -> None:
        """Counts the available blocks. It runs in the reader thread."""
        found = 0
        try:
            if not work.cancelled:
                work.keys = block_keys(identity, work.extra_key, work.ids, self._limits.block_tokens)
                found = self._backend.exists(work.keys[work.first_block :])
        finally:
            self._events.put(StorageNews(work.number, found, over=True))

    def _read_blocks(self, work: Fetching) -> None:
        """Runs in the reader: read the blocks that were found, until one is incomplete."""
        filled = 0
        try:
            blocks = -(-(work.start + len(work.pages)) // self._block_pages)
            for index in range(work.first_block, blocks):
                data = None if work.cancelled else self._backend.read(work.keys[index])
                if data is None or len(data) != self._block_pages * self._pages.page_bytes:
                    break
                end = min((index + 1) * self._block_pages - work.start, len(work.pages))
                known = work.start + filled - index * self._block_pages
                part = data[known * self._pages.page_bytes :][: (end - filled) * self._pages.page_bytes]
                self._pages.put(work.pages[filled:end], part)
                filled = end
                if (index + 1 - work.first_block) % BATCH_BLOCKS == 0:
                    self._events.put(StorageNews(work.number, filled, over=False))
        finally:
            self._events.put(StorageNews(work.number, filled, over=True))

    # Between steps

    def look(self) -> Sequence[StorageNews]:
        """Returns the events that the storage threads have reported since the last call."""
        news = []
        with suppress(Empty):
            while True:
                news.append(self._events.get_nowait())
        return news

    def learn(self, news: StorageNews) -> None:
        match self._works[news.work]:
            case Storing() as work:
                del self._works[news.work]
                self.stored += news.amount * self._limits.block_tokens
                self._forget_stored(work)
            case Fetching(sought=False) as work:
                work.sought = True
                self._begin_reading(work, news.amount)
            case Fetching() as work:
                self._adopt(work, news.amount)
                if news.over:
                    self._end(work)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _forget_stored(self, work: Storing) -> None:
        if not work.cancelled:
            self._host.unlock(work.node)
            self._storing.remove(work)

    def _begin_reading(self, work: Fetching, blocks: int) -> None:
        count = (work.first_block + blocks) * self._block_pages - work.start
        if blocks and count > 0 and not work.cancelled:
            work.pages = self._host.take(count)
        if not len(work.pages):
            self._end(work)
            return
        self._reader.submit(lambda: self._read_blocks(work))

    def _adopt(self, work: Fetching, filled: int) -> None:
        """Makes the fetched pages before `filled` part of the tree."""
        if work.cancelled or filled <= work.adopted:
            return
        size = self._host.page_size
        begin, end = work.start + work.adopted, work.start + filled
        pages = work.pages[work.adopted : filled]
        work.adopted = filled
        if work.node.end != begin or work.node.condemned:
            # Another request's pages arrived first, or the pages before these cannot be trusted.
            self._host.give_back(pages)
            return
        work.node = self._host.adopt(work.node, work.ids[begin * size : end * size], pages)
        if work.node.end == end:
            self.fetched += len(pages) * size

    def _end(self, work: Fetching) -> None:
        self._host.give_back(work.pages[work.adopted :])
        if not work.cancelled:
            self._host.unlock(work.node)
        self._fetching.remove(work)
        del self._works[work.number]
        work.done = True

    # Care

    def weights_changed(self) -> None:
        """Stop using storage until the host tier is emptied: stored pages belong to another model, and the host's may.

        The present model has no name, so its pages are found in this process only.
        """
        self._cancel()
        self._identity = f"{self._identity} {token_hex(16)}"
        self._closed = True

    def reset(self) -> None:
        """Prepares for the emptying of the host. Pages that are being filled come back when the reader is done with
        them.
        """
        self._cancel()
        self._closed = False

    def _cancel(self) -> None:
        for storing in self._storing:
            storing.cancelled = True
            self._host.unlock(storing.node)
        self._storing.clear()
        for fetching in self._fetching:
            if not fetching.cancelled:
                fetching.cancelled = fetching.done = True
                self._host.unlock(fetching.node)

    @property
    def locked(self) -> list[TreeNode]:
        """Nodes of the host tier that are locked for storage, with repeats."""
        fetching = [work.node for work in self._fetching if not work.cancelled]
        return [work.node for work in self._storing] + fetching

    @property
    def taken(self) -> list[Ints]:
        """Pages of the host that are being filled."""
        return [work.pages[work.adopted :] for work in self._fetching]
