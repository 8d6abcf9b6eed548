"""When a scheduler changes its weights: after earlier requests, before later ones, and never during a step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from fixtures.fake_worker import solo
from fixtures.late_scheduler import VOCAB, LateScheduler, Setup
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.weights import GroupFacts, Pulse, TensorFacts
from mysglang.srt.messages.control import (
    Command,
    ContinueGenerationReq,
    ControlReqOutput,
    GetInternalStateReq,
    GetInternalStateReqOutput,
    HeartBeat,
    PauseGenerationReq,
)
from mysglang.srt.messages.outputs import Abort, Length
from mysglang.srt.messages.weights import (
    CheckWeightsReq,
    DestroyWeightsUpdateGroupReq,
    GetWeightsByNameReq,
    InitWeightsUpdateGroupReq,
    SaveShardedModelReq,
    UpdateWeightsFromDistributedReq,
    UpdateWeightsReq,
    UpdateWeightVersionReq,
    WeightUpdate,
)
from mysglang.srt.utils.sharded_state import ShardPlace

PROMPT = [4, 5, 6, 7, 8]
UPDATE = WeightUpdate(weight_version="two")


class NotedWeights:
    """Notes what it is asked, and how many requests were open then."""

    def __init__(self) -> None:
        self.scheduler: LateScheduler | None = None
        self.open: list[list[str]] = []
        self.sums = {"a": "1", "b": "2"}
        self.joining: Future[None] = Future()

    def update_from_files(self, path: str, *, whole: bool, pulse: Pulse) -> int:
        if path == "bad":
            raise InvalidRequest("tensor a has shape [1]", param="names")
        assert self.scheduler is not None
        self.open.append(list(self.scheduler.assembled.scheduler.reqs))
        pulse()
        self.sums["a"] = path
        return 2

    def join_group(self, group: GroupFacts) -> Future[None]:
        return self.joining

    def leave_group(self, name: str) -> None:
        raise InvalidRequest(f"no group {name}", param="group_name")

    def receive(self, tensors: Sequence[TensorFacts], group: str, pulse: Pulse) -> int:
        assert tensors == [TensorFacts("a", "float32", (2, 3))]
        return self.update_from_files(group, whole=False, pulse=pulse)

    def read(self, name: str, count: int) -> list[Any]:
        return [[1.0] * count]

    def checksums(self, pulse: Pulse) -> dict[str, str]:
        return dict(self.sums)

    def save_sharded(self, place: ShardPlace, pulse: Pulse) -> int:
        if place.max_size == 1:
            raise InvalidRequest("path: no room", param="path")
        return len(place.saved)


class Changing(LateScheduler):
    def __init__(self, setup: Setup) -> None:
        self.weights = NotedWeights()
        super().__init__(setup, weights=self.weights)
        self.weights.scheduler = self

    def replies_now(self) -> list[ControlReqOutput]:
        return [reply for reply in self.replies.drain() if isinstance(reply, ControlReqOutput)]

    def order(self, command: Command) -> list[ControlReqOutput]:
        self.requests.send(command)
        # The step in flight is settled first.
        self.turn(2)
        return self.replies_now()


def update(number: int, path: str = "new", change: WeightUpdate = UPDATE) -> UpdateWeightsReq:
    return UpdateWeightsReq(id=number, path=path, whole=True, update=change)


@pytest.mark.parametrize("overlap", [False, True])
def test_those_before_end_first_and_those_after_wait(overlap: bool) -> None:
    scheduler = Changing(Setup(overlap=overlap))
    scheduler.send("before", PROMPT, 20, ignore_eos=True)
    scheduler.turn(4)
    assert not scheduler.order(update(1))
    scheduler.send("after", PROMPT, 20, ignore_eos=True)
    scheduler.turn(5)
    assert not scheduler.weights.open
    assert not scheduler.answers["after"].ids
    scheduler.run()
    assert scheduler.weights.open == [[]]
    [reply] = scheduler.replies_now()
    assert (reply.id, reply.success, reply.details) == (1, True, {"num_paused_requests": 0})
    for name in ("before", "after"):
        assert scheduler.answers[name].ids == solo(PROMPT, 20, VOCAB, ignore_eos=True)
    # What the old weights computed is not used by the new ones.
    assert scheduler.answers["after"].cached_tokens == 0


def test_those_that_wait_for_new_weights_are_counted() -> None:
    scheduler = Changing(Setup())
    scheduler.send("before", PROMPT, 20, ignore_eos=True)
    scheduler.turn(4)
    scheduler.requests.send(update(1))
    for name in ("after", "last"):
        scheduler.send(name, PROMPT, 20)
    scheduler.requests.send(GetInternalStateReq(id=2))
    scheduler.turn()
    scheduler.assembled.scheduler.beat()
    *_, state, beat = scheduler.replies.drain()
    assert isinstance(state, GetInternalStateReqOutput) and isinstance(beat, HeartBeat)
    assert (state.num_running_reqs, state.num_waiting_reqs) == (1, 2)
    assert (beat.num_running_reqs, beat.num_waiting_reqs) == (1, 2)
    scheduler.run()


def test_a_waiting_request_can_be_aborted() -> None:
    scheduler = Changing(Setup())
    scheduler.send("before", PROMPT, 20, ignore_eos=True)
    scheduler.turn(4)
    scheduler.order(update(1))
    scheduler.send("after", PROMPT, 20)
    scheduler.send("last", PROMPT, 20, ignore_eos=True)
    scheduler.turn(1)
    scheduler.abort("after")
    scheduler.turn(1)
    assert isinstance(scheduler.answers["after"].finish, Abort)
    assert scheduler.answers["before"].finish is None
    scheduler.run()
    assert scheduler.answers["last"].finish == Length(20)


def test_all_can_be_aborted_for_it() -> None:
    scheduler = Changing(Setup())
    scheduler.send("before", PROMPT, 50, ignore_eos=True)
    scheduler.turn(6)
    [reply] = scheduler.order(update(1, change=WeightUpdate(abort_all_requests=True)))
    assert reply.success
    scheduler.turn(1)
    assert isinstance(scheduler.answers["before"].finish, Abort)
    scheduler.run()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_while_paused_it_happens_at_once(mode: Any) -> None:
    scheduler = Changing(Setup())
    scheduler.send("a", PROMPT, 20, ignore_eos=True)
    scheduler.turn(6)
    scheduler.order(PauseGenerationReq(id=1, mode=mode))
    [reply] = scheduler.order(update(2))
    # The cache of requests that keep their memory cannot be emptied, and nothing was changed then.
    assert reply.success == (mode == "retract")
    assert len(scheduler.weights.open) == (mode == "retract")
    [reply] = scheduler.order(update(3, change=WeightUpdate(flush_cache=False, weight_version="three")))
    assert reply.success
    assert reply.details == {"num_paused_requests": 1}
    scheduler.order(ContinueGenerationReq(id=4))
    scheduler.run()
    assert scheduler.answers["a"].ids == solo(PROMPT, 20, VOCAB, ignore_eos=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_tokens_are_told_with_the_weights_that_computed_them(mode: Any, stream: bool) -> None:
    """Also those that no message had reason to tell before the change, as of answers that come whole."""
    scheduler = Changing(Setup())
    scheduler.send("a", PROMPT, 20, stream=stream, stream_interval=50, ignore_eos=True)
    scheduler.turn(6)
    scheduler.order(PauseGenerationReq(id=1, mode=mode))
    [reply] = scheduler.order(update(2, change=WeightUpdate(flush_cache=False, weight_version="three")))
    assert reply.success
    scheduler.turn()
    told = len(scheduler.answers["a"].ids)
    assert told > 1 and scheduler.last_version == "default"
    scheduler.order(ContinueGenerationReq(id=3))
    scheduler.run()
    answer = scheduler.answers["a"]
    assert answer.ids == solo(PROMPT, 20, VOCAB, ignore_eos=True)
    assert answer.versions == {"default": told, "three": 20 - told}


def test_what_does_not_fit_is_told_and_requests_go_on() -> None:
    scheduler = Changing(Setup())
    [reply] = scheduler.order(update(1, "bad"))
    assert (reply.success, reply.message, reply.param) == (False, "tensor a has shape [1]", "names")
    assert scheduler.assembled.scheduler.standstill.held == {}
    scheduler.send("a", PROMPT, 20, ignore_eos=True)
    scheduler.run()
    assert scheduler.answers["a"].finish == Length(20)


def test_the_version_is_told_with_tokens_and_heartbeats() -> None:
    scheduler = Changing(Setup())
    scheduler.requests.send(UpdateWeightVersionReq(id=1, new_version="v7"))
    scheduler.turn()
    told = scheduler.replies.drain()
    beats = [message.weight_version for message in told if isinstance(message, HeartBeat)]
    assert beats[-1] == "v7"
    assert isinstance(told[-1], ControlReqOutput)
    scheduler.send("a", PROMPT, 3, ignore_eos=True)
    scheduler.run()
    assert scheduler.last_version == "v7"


def test_groups_sums_and_values() -> None:
    scheduler = Changing(Setup())
    join = InitWeightsUpdateGroupReq(
        id=1, master_address="x", master_port=1, rank_offset=1, world_size=2, group_name="g", backend="gloo"
    )
    assert not scheduler.order(join)
    scheduler.weights.joining.set_result(None)
    scheduler.turn()
    assert [(reply.id, reply.success) for reply in scheduler.replies_now()] == [(1, True)]
    receive = UpdateWeightsFromDistributedReq(
        id=2, names=["a"], dtypes=["float32"], shapes=[[2, 3]], group_name="g", update=UPDATE
    )
    assert not scheduler.order(CheckWeightsReq(id=3, action="compare"))[0].success
    assert scheduler.order(CheckWeightsReq(id=4, action="snapshot"))[0].success
    assert scheduler.order(receive)[0].success
    assert scheduler.order(CheckWeightsReq(id=5, action="compare"))[0].details == {"changed": ["a"]}
    assert scheduler.order(CheckWeightsReq(id=6, action="checksum"))[0].details["checksums"] == {"a": "g", "b": "2"}
    assert scheduler.order(GetWeightsByNameReq(id=7, name="a", truncate_size=2))[0].details["parameter"] == [[1.0, 1.0]]
    [reply] = scheduler.order(DestroyWeightsUpdateGroupReq(id=8, group_name="g"))
    assert (reply.message, reply.param) == ("no group g", "group_name")
    save = SaveShardedModelReq(id=9, path="folder", pattern="{rank}", max_size=None, saved="abc")
    assert scheduler.order(save)[0].message == "Rank 0 wrote 3 files to folder."
    [reply] = scheduler.order(msgspec.structs.replace(save, max_size=1))
    assert (reply.success, reply.param) == (False, "path")
    scheduler.weights.joining = Future()
    scheduler.weights.joining.set_exception(InvalidRequest("nobody came"))
    assert scheduler.order(join)[0].message == "nobody came"
