"""The operator's view of the prefix cache: on a whole scheduler, and by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.managers.scheduler_control import MAX_NOTES, CacheWatch
from mysglang.srt.mem_cache.allocator import PageAllocator
from mysglang.srt.mem_cache.radix_cache import RadixCache
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import (
    ContinueGenerationReq,
    ControlReqOutput,
    GetCacheTreeReq,
    PauseGenerationReq,
)


def nodes_of(reply: object) -> list[dict[str, Any]]:
    """The nodes that hold tokens."""
    assert isinstance(reply, ControlReqOutput) and reply.success
    return [node for node in reply.details["nodes"] if node["tokens"]]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_cache_is_shown_while_requests_share_it(overlap: bool) -> None:
    """Also while generation is paused: the picture needs no step."""
    scheduler = LateScheduler(Setup(overlap=overlap))

    def tree(preview: int) -> list[dict[str, Any]]:
        scheduler.requests.send(GetCacheTreeReq(id=7, preview_tokens=preview))
        scheduler.turn()
        (reply,) = [reply for reply in scheduler.replies.drain() if isinstance(reply, ControlReqOutput)]
        return nodes_of(reply)

    assert tree(4) == []
    shared = list(range(1, 20))
    for rid, last in (("a", 30), ("b", 31)):
        scheduler.send(rid, [*shared, last], 50, ignore_eos=True)
        scheduler.turn(4)
    scheduler.requests.send(PauseGenerationReq(id=1, mode="in_place"))
    scheduler.turn()
    scheduler.replies.drain()
    nodes = tree(4)
    assert [(node["tokens"], node["ids"]) for node in nodes if node["locks"] == 2] == [(19, [1, 2, 3, 4])]
    assert all(node["ids"] == [] for node in tree(0))
    scheduler.requests.send(ContinueGenerationReq(id=2))
    scheduler.run()
    scheduler.replies.drain()
    assert all(node["locks"] == 0 and node["idle_s"] >= 0 for node in tree(4))
    assert scheduler.answers["a"].ids == solo([*shared, 30], 50, VOCAB, ignore_eos=True)


class Bench:
    """A cache whose uses the test makes, and a clock that it moves."""

    def __init__(self) -> None:
        self.now = 50.0
        self.sent: list[ToTokenizer] = []
        self.allocator = PageAllocator(64, 1)
        self.cache = RadixCache(self.allocator)
        self.watch = CacheWatch(self.cache, self, clock=lambda: self.now)

    def send(self, message: ToTokenizer) -> None:
        self.sent.append(message)

    def use(self, ids: Sequence[int]) -> None:
        """A request with this prompt comes and goes."""
        array = np.array(ids, np.int32)
        match = self.cache.match_prefix(array, "")
        node = self.cache.inc_lock_ref(match)
        self.cache.insert(node, array[match.num_tokens :], self.allocator.alloc(len(ids) - match.num_tokens))
        self.cache.dec_lock_ref(node)

    def idle(self) -> dict[int, float]:
        """First token of each run -> seconds since it was used."""
        self.watch.get_cache_tree(GetCacheTreeReq(id=1, preview_tokens=1))
        return {node["ids"][0]: node["idle_s"] for node in nodes_of(self.sent[-1])}


def test_it_knows_from_heartbeats_when_runs_were_used() -> None:
    bench = Bench()
    for ids, seconds in (([1, 2, 3], 1.0), ([5, 6], 10.0), ([7], 0.0), ([8], 1.0)):
        bench.use(ids)
        bench.now += seconds
        if seconds:
            bench.watch.on_beat()
    for _ in range(300):
        bench.now += 1
        bench.watch.on_beat()
    # What was used between two heartbeats counts as used with the second one.
    assert bench.idle() == {1: 311.0, 5: 301.0, 7: 300.0, 8: 300.0}
    bench.use([1, 2, 3])
    assert bench.idle() == {1: 0.0, 5: 301.0, 7: 300.0, 8: 300.0}


def test_it_keeps_an_hour_of_work() -> None:
    bench = Bench()
    bench.use([1])
    for _ in range(MAX_NOTES + 100):
        bench.now += 1
        bench.use([2])
        bench.watch.on_beat()
    assert bench.idle() == {1: MAX_NOTES - 1.0, 2: 0.0}
