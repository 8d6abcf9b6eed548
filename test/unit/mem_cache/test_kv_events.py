"""A reader of the events alone knows at every moment which prefixes are cached."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from fixtures.late_scheduler import LateScheduler, Setup
from fixtures.router_mirror import Prefix, RouterMirror
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.evict_policy import EvictPolicyName
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.hiradix_cache import HiRadixCache, WritePolicyName
from mysglang.srt.mem_cache.kv_events import KvEventLog, block_hashes, first_hash
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.radix_tree import RadixTree


def cached(tree: RadixTree) -> set[Prefix]:
    """Every prefix that can be matched, page by page."""
    found: set[Prefix] = set()
    for root in tree.roots.values():
        stack: list[tuple[object, tuple[int, ...]]] = [(root, ())]
        while stack:
            node, before = stack.pop()
            tokens = (*before, *node.key.tolist())  # type: ignore[attr-defined]
            ends = range(len(before) + tree.page_size, len(tokens) + 1, tree.page_size)
            found |= {(root.name, tokens[:end]) for end in ends}
            stack += [(child, tokens) for child in node.children.values()]  # type: ignore[attr-defined]
    return found


def hear(log: KvEventLog, mirror: RouterMirror) -> int:
    """Over the wire and into the mirror; how many events there were."""
    events = msgspec.msgpack.decode(msgspec.msgpack.encode(log.take()))
    for event in events:
        mirror.apply(event)
    return len(events)


@pytest.mark.parametrize("eviction", ["lru", "slru", "filo"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_mirror_follows_a_scheduler_that_is_short_of_memory(page_size: int, eviction: EvictPolicyName) -> None:
    """Prompts share beginnings, come in chunks, are evicted and retracted, in two namespaces."""
    log, mirror = KvEventLog(256 // page_size, page_size), RouterMirror()
    setup = Setup(num_tokens=256, max_context=128, num_slots=6, page_size=page_size, chunk=16, conservativeness=0.1)
    scheduler = LateScheduler(replace(setup, listener=log, eviction=eviction))
    rng = np.random.default_rng(3)
    heard = 0
    for i in range(40):
        prompt = [*[int(rng.integers(1, 3))] * int(rng.integers(1, 30)), *rng.integers(1, 60, 8).tolist()]
        extra_key = "tenant" if i % 3 == 0 else ""
        scheduler.send(f"r{i}", prompt, int(rng.integers(1, 40)), ignore_eos=True, extra_key=extra_key)
        for _ in range(4):
            scheduler.turn()
            heard += hear(log, mirror)
            assert mirror.prefixes == cached(scheduler.kv.cache.tree)  # type: ignore[attr-defined]
    scheduler.run()
    heard += hear(log, mirror)
    assert mirror.prefixes == cached(scheduler.kv.cache.tree)  # type: ignore[attr-defined]
    assert heard > 100
    assert scheduler.kv.flush()
    assert log.take()[-1:] and not cached(scheduler.kv.cache.tree)  # type: ignore[attr-defined]


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_mirrors_follow_both_tiers(write_policy: WritePolicyName) -> None:
    """A prefix that was evicted from the device may still be reported as being on the host."""
    log = KvEventLog(64, 4)
    mirrors = {medium: RouterMirror(medium) for medium in ("GPU", "CPU")}
    setup = Setup(num_tokens=256, max_context=128, num_slots=6, page_size=4, chunk=16, host_tokens=512)
    setup = replace(setup, write_policy=write_policy, listener=log, host_listener=log.of_host(128))
    scheduler = LateScheduler(setup)
    rng = np.random.default_rng(4)
    heard, beyond = 0, 0
    for i in range(60):
        prompt = [*[int(rng.integers(1, 6))] * int(rng.integers(1, 50)), *rng.integers(1, 60, 8).tolist()]
        scheduler.send(f"r{i}", prompt, int(rng.integers(1, 20)), ignore_eos=True, extra_key="salt" * (i % 2))
        for _ in range(4):
            scheduler.turn()
            for event in msgspec.msgpack.decode(msgspec.msgpack.encode(log.take())):
                heard += 1
                for mirror in mirrors.values():
                    mirror.apply(event)
            cache = scheduler.kv.cache
            assert isinstance(cache, HiRadixCache)
            assert mirrors["GPU"].prefixes == cached(cache.tree)
            assert mirrors["CPU"].prefixes == cached(cache.host.tree)
            beyond += len(mirrors["CPU"].prefixes - mirrors["GPU"].prefixes)
    assert heard > 100 and beyond > 100
    scheduler.run()
    log.take()
    assert scheduler.kv.flush()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(log.take())) == [["AllBlocksCleared"]]


class Told:
    """A small cache, and what is heard of it."""

    def __init__(self, num_tokens: int = 16, page_size: int = 1) -> None:
        self.log = KvEventLog(num_tokens // page_size, page_size)
        cache = prefix_cache("radix", listener=self.log)
        self.kv = KvManager([SpaceShape(num_tokens // page_size, page_size)], 4, num_tokens, cache)
        self.mirror = RouterMirror()

    def open(self, ids: Ints, extra_key: str = "") -> int:
        slot = self.kv.open(self.kv.match(ids, extra_key=extra_key, limit=len(ids)))
        assert self.kv.extend(slot, len(ids))
        self.kv.commit(slot, ids)
        return slot

    def events(self) -> list[list[object]]:
        """The events in their form on the wire."""
        events: list[list[object]] = msgspec.msgpack.decode(msgspec.msgpack.encode(self.log.take()))
        for event in events:
            self.mirror.apply(event)
        return events


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


def test_events_have_the_fields_of_sglang_in_their_order() -> None:
    told = Told()
    slot = told.open(ints(1, 2, 3))
    hashes = block_hashes(first_hash(""), ints(1, 2, 3), 1)
    assert told.events() == [["BlockStored", hashes, None, [1, 2, 3], 1, None, "GPU", None]]
    told.kv.release(slot, ints(1, 2, 3))
    other = told.open(ints(1, 2, 9), "salt")
    [[_, salted, *rest]] = told.events()
    assert rest == [None, [1, 2, 9], 1, None, "GPU", "salt"] and not set(salted) & set(hashes)  # type: ignore[arg-type]
    told.kv.release(other, ints(1, 2, 9))
    branch = told.open(ints(1, 2, 4))
    assert told.events() == [["BlockStored", block_hashes(hashes[1], ints(4), 1), hashes[1], [4], 1, None, "GPU", None]]
    told.kv.release(branch, ints(1, 2, 4))
    assert told.kv.flush()
    assert told.events() == [["AllBlocksCleared"]]


def test_names_of_blocks_depend_on_all_before_them_and_on_nothing_else() -> None:
    one = block_hashes(first_hash(""), np.arange(10, dtype=np.int32), 4)
    assert len(one) == 2
    assert one[1:] == block_hashes(one[0], np.arange(4, 8, dtype=np.int32), 4)
    assert all(-(1 << 63) <= name < 1 << 63 for name in one)
    assert block_hashes(first_hash(""), np.arange(1, 9, dtype=np.int32), 4)[1] != one[1]
    # Subscribers keep names over a restart of the server: a change of these is a change of the protocol.
    assert block_hashes(first_hash(""), ints(1, 2), 1) == [2712027306866293751, 1026079502079410889]


def test_what_is_cut_off_a_leaf_is_removed_and_the_rest_is_not() -> None:
    told = Told(num_tokens=8)
    ids = ints(1, 2, 3, 4, 5, 6)
    told.kv.release(told.open(ids), ids)
    told.events()
    told.open(ints(7, 8, 9, 10))
    removed, stored = told.events()
    assert removed[0] == "BlockRemoved" and len(removed[1]) == 2  # type: ignore[arg-type]
    assert stored[3] == [7, 8, 9, 10]
    assert (("", (1, 2, 3, 4)) in told.mirror.prefixes) and (("", (1, 2, 3, 4, 5)) not in told.mirror.prefixes)


def test_what_is_computed_twice_is_told_once() -> None:
    """Two rows generate the same: the cache keeps the first one's pages, and only what goes beyond is new."""
    told = Told(num_tokens=32)
    slots = [told.open(ints(1, 2)) for _ in range(2)]
    told.events()
    for slot, ids in zip(slots, (ints(1, 2, 3, 4), ints(1, 2, 3, 4, 5)), strict=True):
        assert told.kv.extend(slot, len(ids))
        told.kv.release(slot, ids)
    first, second = told.events()
    assert (first[3], second[3]) == ([3, 4], [5])
    assert second[2] == first[1][-1]  # type: ignore[index]


def test_what_is_not_to_be_trusted_is_removed_at_once_and_only_once() -> None:
    told = Told(num_tokens=16)
    slot = told.open(ints(1, 2, 3))
    told.events()
    assert told.kv.condemn(slot)
    assert [event[0] for event in told.events()] == ["BlockRemoved"]
    again = told.open(ints(1, 2, 3))
    assert [event[0] for event in told.events()] == ["BlockStored"]
    told.kv.discard(slot)
    told.kv.release(again, ints(1, 2, 3))
    told.open(ints(*range(20, 33)))
    told.events()
    assert told.mirror.prefixes == cached(told.kv.cache.tree)  # type: ignore[attr-defined]
