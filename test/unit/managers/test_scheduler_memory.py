"""When a scheduler releases memory: only when idle, and then requests are refused until all of it is back."""

from __future__ import annotations

import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import Pulse
from mysglang.srt.managers import scheduler_control
from mysglang.srt.messages.control import Command, ContinueGenerationReq, ControlReqOutput, PauseGenerationReq
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.weights import (
    MEMORY_TAGS,
    ReleaseMemoryOccupationReq,
    ResumeMemoryOccupationReq,
    SlowDownReq,
)

PROMPT = [4, 5, 6, 7, 8]
ALL = list(MEMORY_TAGS)


class Lent:
    def __init__(self) -> None:
        self.released: frozenset[str] = frozenset()
        self.room = True

    def release(self, tags: frozenset[str], pulse: Pulse) -> int:
        self.released |= tags
        return 3 << 30

    def resume(self, tags: frozenset[str], pulse: Pulse) -> None:
        if not self.room:
            raise InvalidRequest("no memory", param="tags")
        self.released -= tags


def ask(scheduler: LateScheduler, command: Command) -> ControlReqOutput:
    scheduler.requests.send(command)
    scheduler.turn()
    [reply] = [reply for reply in scheduler.replies.drain() if isinstance(reply, ControlReqOutput)]
    return reply


def test_only_idle_and_nobody_is_served_meanwhile() -> None:
    memory = Lent()
    scheduler = LateScheduler(Setup(), memory=memory)
    scheduler.send("a", PROMPT, 10, ignore_eos=True)
    scheduler.turn(3)
    reply = ask(scheduler, ReleaseMemoryOccupationReq(id=1, tags=ALL))
    assert (reply.success, memory.released) == (False, frozenset())
    scheduler.run()
    assert scheduler.kv.state().evictable > 0
    reply = ask(scheduler, ReleaseMemoryOccupationReq(id=2, tags=ALL))
    assert reply.message == "3.00 GiB were given back; released now: cuda_graph, kv_cache, weights."
    # What was in the cache is gone.
    assert scheduler.kv.state().evictable == 0
    steps = len(scheduler.worker.steps)
    scheduler.send("b", PROMPT, 10)
    scheduler.turn(3)
    finish = scheduler.answers["b"].finish
    assert isinstance(finish, Abort)
    assert finish.status == 503
    assert len(scheduler.worker.steps) == steps
    assert ask(scheduler, ResumeMemoryOccupationReq(id=3, tags=["weights"])).success
    scheduler.send("c", PROMPT, 10)
    scheduler.turn(3)
    assert isinstance(scheduler.answers["c"].finish, Abort)
    memory.room = False
    reply = ask(scheduler, ResumeMemoryOccupationReq(id=4, tags=ALL))
    assert (reply.message, reply.param) == ("no memory", "tags")
    memory.room = True
    assert ask(scheduler, ResumeMemoryOccupationReq(id=5, tags=ALL)).success
    scheduler.send("d", PROMPT, 10, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["d"].ids == solo(PROMPT, 10, VOCAB, ignore_eos=True)


def test_those_that_a_pause_retracted_go_on_when_all_is_there() -> None:
    memory = Lent()
    scheduler = LateScheduler(Setup(), memory=memory)
    scheduler.send("a", PROMPT, 20, ignore_eos=True)
    scheduler.turn(6)
    ask(scheduler, PauseGenerationReq(id=1, mode="in_place"))
    assert not ask(scheduler, ReleaseMemoryOccupationReq(id=2, tags=ALL)).success
    ask(scheduler, PauseGenerationReq(id=3, mode="retract"))
    assert ask(scheduler, ReleaseMemoryOccupationReq(id=4, tags=ALL)).success
    ask(scheduler, ContinueGenerationReq(id=5))
    scheduler.turn(5)
    assert scheduler.answers["a"].finish is None
    ask(scheduler, ResumeMemoryOccupationReq(id=6, tags=ALL))
    scheduler.run()
    assert scheduler.answers["a"].ids == solo(PROMPT, 20, VOCAB, ignore_eos=True)


def test_steps_can_be_made_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(scheduler_control.time, "sleep", slept.append)
    scheduler = LateScheduler(Setup())
    ask(scheduler, SlowDownReq(id=1, forward_sleep_time=0.01))
    scheduler.send("a", PROMPT, 10, ignore_eos=True)
    scheduler.run()
    assert len(slept) >= 10 and set(slept) == {0.01}
    assert ask(scheduler, SlowDownReq(id=2, forward_sleep_time=None)).message == "Each step sleeps for 0 s."
