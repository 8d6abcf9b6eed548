"""RankLinks: the messages that ranks exchange in addition to tensors, and the null objects of a rank that follows.

    first rank    requests of the fronts, and its own news ──▶ Turn 1, Turn 2, … ──▶ every other rank
                                                           ◀── Report              how far its own copies are

So all ranks apply the same messages in the same order between the same steps. A rank that follows waits for the next
turn where the first rank would read its socket; it receives nothing else. Work that every rank does, such as copies of
its pages, becomes news when the last rank has reported it. Turns are numbered, and have a digest of what
the first rank has planned so far: a rank that missed a turn, or has planned something else, ends.

A rank that follows plans and computes every step as the first rank does. It has null objects for the work that only the
first rank does: `NoRequests` receives nothing from fronts and `NoListener` sends no answers; `NoMasks`
(`scheduling/token_masks.py`) makes no masks, and `SilentStreamer` (`scheduling/output_streamer.py`) makes no answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mysglang.srt.messages.channels import Receiver, Sender
from mysglang.srt.messages.codec import Codec, ToDetokenizer, ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput, FlushCacheReqOutput, GetInternalStateReqOutput
from mysglang.srt.messages.requests import ToScheduler
from mysglang.srt.scheduling.intake import Message, OutsideNews
from mysglang.srt.scheduling.step_planner import PlanDigest
from mysglang.srt.utils.outside import Reports

WAIT_MS = 200
"""How long a rank waits for a turn before it gives a sign of life. An idle first rank turns as often."""


class TurnNews(msgspec.Struct, frozen=True, tag=True):
    """News for one part of the scheduler."""

    part: int
    """Its place among the parts that have to do with what is outside."""
    news: msgspec.Raw


TurnMessage: TypeAlias = ToScheduler | TurnNews


class Turn(msgspec.Struct, frozen=True):
    """The messages of one iteration of the scheduler's loop."""

    number: int
    planned: int
    """The first rank's `PlanDigest`."""
    messages: list[TurnMessage]


def turn_codec() -> Codec[Turn]:
    """Returns the codec of messages from the first rank to each other rank."""
    return Codec(Turn)


class Report(msgspec.Struct, frozen=True):
    """A following rank reports that its own part of some work is done. Every rank does a part of that work."""

    rank: int
    part: int
    """The part of the scheduler, as in TurnNews."""
    news: msgspec.Raw


def report_codec() -> Codec[Report]:
    """Returns the codec of messages from all other ranks to the first rank."""
    return Codec(Report)


@dataclass(frozen=True, slots=True)
class PartNews:
    """News of one part of the scheduler that has to do with what is outside."""

    kind: Any
    """Type of the news, or a union of types."""
    reports: Reports | None = None
    """Joins what all ranks report; None: what the first rank finds out counts alone."""

    def decoded(self, news: msgspec.Raw) -> Any:
        return msgspec.msgpack.decode(news, type=self.kind)


class LeadShare:
    """Implements intake.Share on the first rank."""

    def __init__(
        self,
        followers: Sequence[Sender[Turn]],
        parts: Sequence[PartNews],
        reports: Receiver[Report],
        digest: PlanDigest,
    ) -> None:
        """`digest`: a digest of the plans of this rank. `parts`: in the order of their numbers."""
        self._followers = followers
        self._parts = parts
        self._reports = reports
        self._digest = digest
        self._number = 0

    def share(self, messages: list[Message]) -> list[Message]:
        messages = list(self._agreed(messages))
        self._number += 1
        turn = Turn(self._number, self._digest.value, [_packed(message) for message in messages])
        for follower in self._followers:
            follower.send(turn)
        return messages

    def _agreed(self, messages: list[Message]) -> Iterator[Message]:
        """Yields `messages`, with each rank's reports about its own work replaced by news about what all ranks have
        done.
        """
        for message in messages:
            if isinstance(message, OutsideNews):
                yield from self._joined(0, message)
            else:
                yield message
        for report in self._reports.drain():
            yield from self._joined(
                report.rank, OutsideNews(report.part, self._parts[report.part].decoded(report.news))
            )

    def _joined(self, rank: int, outside: OutsideNews) -> Iterator[OutsideNews]:
        reports = self._parts[outside.part].reports
        found = (outside.news,) if reports is None else reports.add(rank, outside.news)
        return (OutsideNews(outside.part, news) for news in found)


class FollowShare:
    """Implements intake.Share on every rank but the first. Such a rank reports its progress with work that every rank
    does; the first rank decides all else.
    """

    def __init__(
        self,
        turns: Receiver[Turn],
        parts: Sequence[PartNews],
        reports: Sender[Report],
        digest: PlanDigest,
        *,
        rank: int,
    ) -> None:
        """`digest`: a digest of the plans of this rank. `parts`: in the order of their numbers. `rank`: number of this
        rank.
        """
        self.pulse: Callable[[], None] = _nothing
        """Called again and again while there is no turn."""
        self._turns = turns
        self._digest = digest
        self._parts = parts
        self._reports = reports
        self._rank = rank
        self._arrived: deque[Turn] = deque()
        self._number = 0

    def share(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            if isinstance(message, OutsideNews) and self._parts[message.part].reports is not None:
                self._reports.send(Report(self._rank, message.part, _raw(message.news)))
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
        return OutsideNews(message.part, self._parts[message.part].decoded(message.news))


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
    if not isinstance(message, OutsideNews):
        return message
    return TurnNews(message.part, _raw(message.news))


def _raw(news: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(news))


def _nothing() -> None:
    pass


class NoRequests:
    """A Receiver at which nothing arrives. It never waits, because this rank waits for the first one's next message
    list instead.
    """

    def poll(self, timeout_ms: int) -> bool:
        return False

    def drain(self) -> list[ToScheduler]:
        return []


class NoListener:
    """A Sender that drops every message."""

    def send(self, message: ToDetokenizer) -> None:
        pass
