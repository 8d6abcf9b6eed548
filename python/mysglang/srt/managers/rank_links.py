"""RankLinks: the messages that ranks exchange in addition to tensors, and the null objects of a rank that follows.

    first rank    requests of the fronts, and its own news ──▶ Turn 1, Turn 2, … ──▶ every other rank

So all ranks apply the same messages in the same order between the same steps. A rank that follows waits for the next
turn where the first rank would read its socket; it receives nothing else. Turns are numbered, and have a digest of what
the first rank has planned so far: a rank that missed a turn, or has planned something else, ends.

A rank that follows plans and computes every step as the first rank does. It has null objects for the work that only the
first rank does: `NoRequests` receives nothing from fronts and `NoListener` sends no answers; `NoMasks`
(`scheduling/token_masks.py`) makes no masks, and `SilentStreamer` (`scheduling/output_streamer.py`) makes no answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from mysglang.srt.messages.channels import Receiver, Sender
from mysglang.srt.messages.codec import Codec, ToDetokenizer, ToScheduler, ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput, FlushCacheReqOutput, GetInternalStateReqOutput
from mysglang.srt.scheduling.intake import Message, Told
from mysglang.srt.scheduling.step_planner import PlanDigest

WAIT_MS = 200
"""How long a rank waits for a turn before it gives a sign of life. An idle first rank turns as often."""


class TurnNews(msgspec.Struct, frozen=True, tag=True):
    """News for a part of the scheduler."""

    part: int
    """Its place among the parts that have to do with what is outside."""
    news: msgspec.Raw


TurnMessage: TypeAlias = ToScheduler | TurnNews


class Turn(msgspec.Struct, frozen=True):
    """The messages of one turn."""

    number: int
    planned: int
    """The first rank's `PlanDigest`."""
    messages: list[TurnMessage]


def turn_codec() -> Codec[Turn]:
    """The link from the first rank to each other one."""
    return Codec(Turn)


class LeadShare:
    """Implements intake.Share on the first rank."""

    def __init__(self, followers: Sequence[Sender[Turn]], digest: PlanDigest) -> None:
        """`digest`: of what this rank plans."""
        self._followers = followers
        self._digest = digest
        self._number = 0

    def share(self, messages: list[Message]) -> list[Message]:
        self._number += 1
        turn = Turn(self._number, self._digest.value, [_packed(message) for message in messages])
        for follower in self._followers:
            follower.send(turn)
        return messages


class FollowShare:
    """Implements intake.Share on every other rank. What such a rank has to say itself does not count."""

    def __init__(self, turns: Receiver[Turn], news: Sequence[Any], digest: PlanDigest) -> None:
        """`digest`: of what this rank plans. `news`: for each part of the scheduler that has to do with what is
        outside, the type of its news; None for a part that has none.
        """
        self.pulse: Callable[[], None] = _nothing
        """Called again and again while there is no turn."""
        self._turns = turns
        self._digest = digest
        self._news = [None if kind is None else msgspec.msgpack.Decoder(kind) for kind in news]
        self._arrived: deque[Turn] = deque()
        self._number = 0

    def share(self, messages: list[Message]) -> list[Message]:
        while not self._arrived:
            if self._turns.poll(WAIT_MS):
                self._arrived.extend(self._turns.drain())
            else:
                self.pulse()
        turn = self._arrived.popleft()
        self._number += 1
        if turn.number != self._number:
            raise RuntimeError(f"turn {self._number} of the first rank did not arrive, but turn {turn.number}")
        if turn.planned != self._digest.value:
            raise RuntimeError("this rank has planned other steps than the first rank")
        return [self._unpacked(message) for message in turn.messages]

    def _unpacked(self, message: TurnMessage) -> Message:
        if not isinstance(message, TurnNews):
            return message
        decoder = self._news[message.part]
        assert decoder is not None, "a part without news has some"
        return Told(message.part, decoder.decode(message.news))


class RankReplies:
    """A Sender to the fronts. Replies of a rank that follows carry its number."""

    def __init__(self, inner: Sender[ToTokenizer], rank: int) -> None:
        self._inner = inner
        self._rank = rank

    def send(self, message: ToTokenizer) -> None:
        if isinstance(message, ControlReqOutput | FlushCacheReqOutput | GetInternalStateReqOutput):
            message = msgspec.structs.replace(message, rank=self._rank)
        self._inner.send(message)


def _packed(message: Message) -> TurnMessage:
    if not isinstance(message, Told):
        return message
    return TurnNews(message.part, msgspec.Raw(msgspec.msgpack.encode(message.news)))


def _nothing() -> None:
    pass


class NoRequests:
    """A Receiver at which nothing arrives. It never waits: this rank waits for the first one's next turn instead."""

    def poll(self, timeout_ms: int) -> bool:
        return False

    def drain(self) -> list[ToScheduler]:
        return []


class NoListener:
    """A Sender into nothing."""

    def send(self, message: ToDetokenizer) -> None:
        pass
