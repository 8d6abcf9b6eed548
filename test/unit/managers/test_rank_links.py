"""Messages between ranks: every rank has the same messages in the same turns, and its replies have its number."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fixtures.early_writers import refused_once
from fixtures.in_process_channels import InProcess
from fixtures.patience import PATIENCE_S, wait_until
from mysglang.srt.constrained.compiler import Failure
from mysglang.srt.constrained.grammar_queue import GrammarNews, GrammarTooSlow, NoTurn, QueueNews
from mysglang.srt.distributed.ranks import Place, RankContext
from mysglang.srt.entrypoints.launcher import make_port_args
from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.managers.rank_links import (
    FollowShare,
    LeadShare,
    PartNews,
    RankReplies,
    Turn,
    report_codec,
    turn_codec,
)
from mysglang.srt.managers.scheduler_builder import _share
from mysglang.srt.mem_cache.host_tier import HostNews
from mysglang.srt.mem_cache.storage.interface import StorageNews
from mysglang.srt.mem_cache.tier_reports import TierNews, TierReports
from mysglang.srt.messages.codec import ToTokenizer, tokenizer_codec
from mysglang.srt.messages.control import ControlReqOutput, FlushCacheReqInput, HeartBeat
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.batch import ScheduleBatch
from mysglang.srt.scheduling.intake import Message, OutsideNews, Share
from mysglang.srt.scheduling.step_planner import PlanDigest
from mysglang.srt.utils.network import make_ipc_dir
from mysglang.srt.utils.private_dir import remove_private_dir

SPEC = GrammarSpec("regex", "a+")
PARTS = (PartNews(TierNews, TierReports(1)), PartNews(QueueNews))
MESSAGES: list[Message] = [
    TokenizedGenerateReqInput(rid="a@1.0", input_ids=pack_ids([1, 2]), sampling_params=SamplingParams(), stream=True),
    AbortReq(rid="a@1.0"),
    FlushCacheReqInput(id=3),
    OutsideNews(1, GrammarNews(SPEC, None, b"compiled")),
    OutsideNews(1, GrammarNews(SPEC, Failure("wrong", lasting=True))),
    OutsideNews(1, NoTurn("b@2.0")),
    OutsideNews(1, GrammarTooSlow(SPEC)),
]


def link() -> InProcess[Turn]:
    return InProcess(turn_codec())


def lead(turns: list[InProcess[Turn]], digest: PlanDigest, parts: Sequence[PartNews] = PARTS) -> LeadShare:
    return LeadShare(turns, parts, InProcess(report_codec()), digest)


def follow(turns: InProcess[Turn], digest: PlanDigest) -> FollowShare:
    return FollowShare(turns, PARTS, InProcess(report_codec()), digest, rank=1)


def test_every_rank_has_the_messages_of_the_first() -> None:
    links = [link(), link()]
    first, followers = lead(links, PlanDigest()), [follow(each, PlanDigest()) for each in links]
    turns: list[list[Message]] = [MESSAGES, [], MESSAGES[:1]]
    for turn in turns:
        assert first.share(turn) == turn
    for follower in followers:
        # What a rank that follows finds itself does not count.
        assert [follower.share([OutsideNews(1, NoTurn("its own"))]) for _ in turns] == turns


def test_work_of_every_rank_is_news_when_the_last_has_reported() -> None:
    turns, reports = link(), InProcess(report_codec())
    parts = (PartNews(TierNews, TierReports(2)), PartNews(QueueNews))
    first = LeadShare([turns], parts, reports, PlanDigest())
    follower = FollowShare(turns, parts, reports, PlanDigest(), rank=1)

    def turn(own: TierNews, other: TierNews) -> list[Message]:
        """The news of two turns: the first rank hears a report in the turn after it."""
        found = first.share([OutsideNews(0, own)])
        assert follower.share([OutsideNews(0, other)]) == found
        later = first.share([])
        assert follower.share([]) == later
        return found + later

    assert turn(HostNews(3), HostNews(1)) == [OutsideNews(0, HostNews(1))]
    assert turn(HostNews(4), HostNews(4)) == [OutsideNews(0, HostNews(4))]
    # Blocks were found, four of them on every rank; then they are read, fewer of them on the first rank.
    assert turn(StorageNews(1, 5, True), StorageNews(1, 4, True)) == [OutsideNews(0, StorageNews(1, 4, True))]
    assert turn(StorageNews(1, 2, False), StorageNews(1, 1, False)) == [OutsideNews(0, StorageNews(1, 1, False))]
    assert turn(StorageNews(1, 2, True), StorageNews(1, 3, False)) == [OutsideNews(0, StorageNews(1, 2, False))]
    assert turn(HostNews(4), StorageNews(1, 4, True)) == [OutsideNews(0, StorageNews(1, 2, True))]


def test_reports_arrive_though_the_files_of_the_sockets_are_removed_once_all_are_ready() -> None:
    """The rank that follows tries to connect before the first rank can read its reports, and fails once."""
    folder = make_ipc_dir()
    ports = make_port_args(folder, num_ranks=2)
    with ThreadPoolExecutor() as threads:

        def share(rank: int) -> Future[Share | None]:
            context = RankContext(world=Place(rank, 2))
            return threads.submit(_share, ports, context, PlanDigest())

        with refused_once(Path(ports.report_ipc_name.removeprefix("ipc://"))):
            second = share(1)
        first, follower = share(0).result(PATIENCE_S), second.result(PATIENCE_S)
        assert first is not None and follower is not None
        remove_private_dir(folder)
        reported = threads.submit(follower.share, [OutsideNews(0, HostNews(1))])
        found = first.share([OutsideNews(0, HostNews(1))])
        reported.result(PATIENCE_S)

        def learnt() -> bool:
            found.extend(first.share([]))
            return found == [OutsideNews(0, HostNews(1))]

        wait_until(learnt, lambda: "the report never arrived")


def test_a_rank_that_waits_gives_signs_of_life() -> None:
    turns = link()
    first, follower = lead([turns], PlanDigest()), follow(turns, PlanDigest())
    signs = 0

    def pulse() -> None:
        nonlocal signs
        signs += 1
        if signs == 3:
            first.share(MESSAGES[:1])

    follower.pulse = pulse
    assert follower.share([]) == MESSAGES[:1]
    assert signs == 3


def test_a_turn_that_is_missing_ends_the_rank() -> None:
    turns = link()
    follower = follow(turns, PlanDigest())
    turns.send(Turn(2, 0, []))
    with pytest.raises(RuntimeError, match="turn 1 of the first rank did not arrive, but turn 2"):
        follower.share([])


def test_a_rank_that_plans_something_else_ends() -> None:
    """Here one token more for one of two rows."""
    turns, plans = link(), [PlanDigest(), PlanDigest()]
    first, follower = lead([turns], plans[0]), follow(turns, plans[1])
    for lens in ([5, 1], [1, 1]):
        for plan in plans:
            plan.agree(step(lens))
        first.share([])
        assert follower.share([]) == []
    plans[0].agree(step([1, 1]))
    plans[1].agree(step([1, 2]))
    first.share([])
    with pytest.raises(RuntimeError, match="planned other steps than the first rank"):
        follower.share([])


def step(lens: list[int]) -> ScheduleBatch:
    rows = len(lens)
    return ScheduleBatch(
        mode=ForwardMode.EXTEND,
        slots=np.arange(rows),
        lives=np.zeros(rows, dtype=np.int64),
        starts=np.zeros(rows, dtype=np.int32),
        lens=np.array(lens, dtype=np.int32),
        high_lens=np.array(lens, dtype=np.int32),
        yields=np.ones(rows, dtype=np.bool_),
        new_tokens=sum(lens),
    )


def test_replies_bear_the_rank() -> None:
    sent: InProcess[ToTokenizer] = InProcess(tokenizer_codec())
    replies = RankReplies(sent, 2)
    beat = HeartBeat(rank=2, forward_steps=0, num_running_reqs=0, num_waiting_reqs=0)
    for message in (ControlReqOutput(id=1, success=True), beat):
        replies.send(message)
    assert sent.drain() == [ControlReqOutput(id=1, success=True, rank=2), beat]
