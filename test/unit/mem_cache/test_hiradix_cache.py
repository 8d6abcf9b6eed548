"""Two tiers under random traffic, against a model that is slow and plainly right, and memory that holds what is copied.

The model knows of each page which prefix it stands for. Copies reach the host late, in the order in which they were
asked for; a page that was given away while it was still read or written would hold another prefix than it should.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import invariant, precondition, rule

from fixtures.outside import hear
from fixtures.traffic import CountingMachine, drive
from mysglang.srt.forward.host_pages import PageCopies
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import hierarchical_cache
from mysglang.srt.mem_cache.hiradix_cache import HiRadixCache, WritePolicyName
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.kv_manager import KvManager

NUM_SLOTS, NUM_PAGES, HOST_PAGES, PAGE, MAX_CONTEXT = 3, 18, 32, 4, 64

Prefix = tuple[str, tuple[int, ...]]
"""A namespace and the tokens of a prefix in whole pages, the last page of which is meant."""

NOTHING: Prefix = ("", ())
NAMESPACES = st.sampled_from(["", "tenant"])
SEEDS = st.integers(0, 7)
LENGTHS = st.integers(1, MAX_CONTEXT - 8)
WHICH = st.integers(0, 7)


class LateMemory:
    """Both memories as prefixes by page. Implements HostPages: calls wait until they must run, or are let."""

    page_bytes = 0
    identity = ""

    def __init__(self) -> None:
        self.num_pages = HOST_PAGES
        self.device: list[Prefix] = [NOTHING] * (NUM_PAGES + 1)
        self.host: list[Prefix] = [NOTHING] * (HOST_PAGES + 1)
        self._queue: list[PageCopies] = []
        self._done = 0

    def copy(self, copies: PageCopies) -> None:
        self._queue.append(copies)
        # The step that comes next waits for these.
        if copies.urgent or len(copies.load):
            self.wait()

    def run_one(self) -> None:
        if self._queue:
            copies = self._queue.pop(0)
            for device, host in zip(copies.write.device.tolist(), copies.write.host.tolist(), strict=True):
                assert self.device[device] != NOTHING
                self.host[host] = self.device[device]
            for device, host in zip(copies.load.device.tolist(), copies.load.host.tolist(), strict=True):
                self.device[device] = self.host[host]
            self._done += 1

    def done(self) -> int:
        return self._done

    def wait(self) -> None:
        while self._queue:
            self.run_one()

    def read(self, pages: Ints) -> bytes | None:
        raise NotImplementedError

    def put(self, pages: Ints, data: bytes) -> None:
        raise NotImplementedError


@dataclass
class Row:
    """A request as the model sees it."""

    namespace: str
    ids: tuple[int, ...]
    found: int
    """Pages that it did not compute."""
    pages: list[Prefix] = field(default_factory=list)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Few beginnings, which part at two places."""
    base = [seed % 2] * 20 + [seed % 4] * 20 + [seed] * MAX_CONTEXT
    return tuple(base[:length])


def array(values: tuple[int, ...]) -> Ints:
    return np.array(values, np.int32)


class TierMachine(CountingMachine):
    """Rows come with a prompt, compute what neither tier has, and leave."""

    write_policy: WritePolicyName = "write_through"

    def __init__(self) -> None:
        super().__init__()
        self.memory = LateMemory()
        self.tier = HostTier(self.memory, PAGE)
        make = hierarchical_cache(self.tier, write_policy=self.write_policy)
        self.kv = KvManager([SpaceShape(NUM_PAGES, PAGE)], NUM_SLOTS, MAX_CONTEXT, make)
        self.rows: dict[int, Row] = {}
        self.loaded = 0

    def prefixes(self, namespace: str, ids: tuple[int, ...]) -> list[Prefix]:
        return [(namespace, ids[:end]) for end in range(PAGE, len(ids) + 1, PAGE)]

    @precondition(lambda self: len(self.rows) < NUM_SLOTS)
    @rule(namespace=NAMESPACES, seed=SEEDS, length=LENGTHS)
    def enter(self, namespace: str, seed: int, length: int) -> None:
        """In one step: what was found is read, the rest is computed."""
        hear(self.kv.cache.lower)
        ids = prompt(seed, length)
        match = self.kv.match(array(ids), extra_key=namespace, limit=length - 1)
        lacking = length - match.num_tokens + self.kv.tokens_to_lock(match)
        if lacking + PAGE > self.kv.available_tokens():
            return
        slot = self.kv.open(match)
        assert self.kv.extend(slot, length)
        self.kv.load_back(slot, match)
        self.loaded += match.reach - match.num_tokens
        self.kv.commit(slot, array(ids))
        self.kv.cache.lower.launch()
        row = self.rows[slot] = Row(namespace, ids, match.reach // PAGE)
        pages = self.kv.rows.pages(slot).tolist()
        expected = self.prefixes(namespace, ids)
        found = [self.memory.device[page] for page in pages[: row.found]]
        assert found == expected[: row.found], "it reads what stands for other tokens"
        for page, prefix in list(zip(pages, expected, strict=False))[row.found :]:
            self.memory.device[page] = prefix

    @precondition(lambda self: len(self.rows) < NUM_SLOTS)
    @rule(namespace=NAMESPACES, seeds=st.lists(SEEDS, min_size=2, max_size=6), length=st.integers(40, MAX_CONTEXT - 8))
    def requests_one_after_the_other(self, namespace: str, seeds: list[int], length: int) -> None:
        for seed in seeds:
            before = set(self.rows)
            self.enter(namespace, seed, length)
            for slot in set(self.rows) - before:
                self.kv.release(slot, array(self.rows.pop(slot).ids))
            self.memory.run_one()
            self.kv.cache.lower.launch()

    @precondition(lambda self: self.rows)
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        slot = list(self.rows)[which % len(self.rows)]
        self.kv.release(slot, array(self.rows.pop(slot).ids))

    @rule()
    def the_device_works(self) -> None:
        self.memory.run_one()

    @rule()
    def a_turn_of_the_loop(self) -> None:
        hear(self.kv.cache.lower)

    @rule()
    def an_idle_turn(self) -> None:
        self.kv.cache.lower.launch()

    @precondition(lambda self: not self.rows and self.tier.tree.num_nodes > 6)
    @rule()
    def flush(self) -> None:
        assert self.kv.flush()
        state = self.kv.state()
        assert state.free == state.total and state.host_free == state.host_total
        assert not self.kv.cache.lower.busy

    # What always holds

    @invariant()
    def law(self) -> None:
        type(self).steps += 1
        self.kv.check()

    @invariant()
    def every_row_finds_its_own_tokens(self) -> None:
        for slot, row in self.rows.items():
            expected = self.prefixes(row.namespace, row.ids)
            pages = self.kv.rows.pages(slot).tolist()[: len(expected)]
            assert [self.memory.device[page] for page in pages] == expected

    @invariant()
    def what_can_be_loaded_is_there(self) -> None:
        cache = self.kv.cache
        assert isinstance(cache, HiRadixCache)
        for namespace in ("", "tenant"):
            for seed in range(8):
                ids = prompt(seed, MAX_CONTEXT)
                found = cache.host.match(array(ids), namespace, 0)
                if found is not None:
                    pages = cache.host.tree.path_pages(found.node)[: found.num_pages].tolist()
                    held = [self.memory.host[page] for page in pages]
                    assert held == self.prefixes(namespace, ids)[: found.num_pages]

    def teardown(self) -> None:
        type(self).loads += self.loaded

    loads = 0


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective", "write_back"])
def test_random_traffic(write_policy: WritePolicyName) -> None:
    class Machine(TierMachine):
        """With settings and steps of its own."""

    Machine.write_policy = write_policy
    drive(Machine)
    assert Machine.loads > 150
