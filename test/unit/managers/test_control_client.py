"""Questions to the scheduler and their replies."""

import asyncio

import msgspec
import pytest

from fixtures.in_process_channels import InProcess
from mysglang.srt.errors import Aborted, InvalidRequest, PeerRefused, WorkerDied
from mysglang.srt.managers.control_client import ControlClient
from mysglang.srt.messages.control import (
    ControlReqOutput,
    FlushCacheReqInput,
    FlushCacheReqOutput,
    GetInternalStateReq,
    PauseGenerationReq,
)
from mysglang.srt.messages.requests import ToScheduler, scheduler_codec
from mysglang.srt.messages.weights import (
    GetWeightsByNameReq,
    ReleaseMemoryOccupationReq,
    UpdateWeightsReq,
    WeightUpdate,
)


@pytest.fixture
def link() -> InProcess[ToScheduler]:
    return InProcess(scheduler_codec())


async def test_each_reply_finds_its_question(link: InProcess[ToScheduler]) -> None:
    client = ControlClient(link)
    asking = [asyncio.create_task(client.flush_cache()) for _ in range(2)]
    await asyncio.sleep(0)
    first, second = link.drain()
    assert isinstance(first, FlushCacheReqInput)
    assert isinstance(second, FlushCacheReqInput)
    client.answer(FlushCacheReqOutput(id=second.id, success=False, message="busy"))
    client.answer(FlushCacheReqOutput(id=first.id, success=True))
    client.answer(FlushCacheReqOutput(id=first.id, success=True))
    client.answer(FlushCacheReqOutput(id=999, success=True))
    assert [reply.success for reply in await asyncio.gather(*asking)] == [True, False]


async def test_no_reply(link: InProcess[ToScheduler]) -> None:
    client = ControlClient(link, timeout_s=0.01)
    with pytest.raises(Aborted, match=r"did not answer within 0\.01 s") as caught:
        await client.get_internal_state()
    assert caught.value.status == 503
    [question] = link.drain()
    assert isinstance(question, GetInternalStateReq)
    # A reply that comes too late is dropped.
    client.answer(FlushCacheReqOutput(id=question.id, success=True))


async def test_a_command_that_the_scheduler_could_not_read_is_refused_at_once(link: InProcess[ToScheduler]) -> None:
    client = ControlClient(link)
    update = WeightUpdate(flush_cache="yes")  # type: ignore[arg-type]
    for make, field in (
        (lambda number: ReleaseMemoryOccupationReq(id=number, tags=["weight"]), "tags"),  # type: ignore[list-item]
        (lambda number: UpdateWeightsReq(id=number, path="x", whole=True, update=update), "flush_cache"),
        (lambda number: GetWeightsByNameReq(id=number, name=None, truncate_size=1), "name"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest, match=field):
            await client.command(make)
    assert link.drain() == [] and not client.num_waiting


async def test_the_engine_dies_meanwhile(link: InProcess[ToScheduler]) -> None:
    client = ControlClient(link)
    asking = [asyncio.create_task(client.flush_cache()) for _ in range(2)]
    await asyncio.sleep(0)
    client.fail_all(WorkerDied("scheduler_TP0 was killed"))
    for task in asking:
        with pytest.raises(WorkerDied, match="was killed"):
            await task


async def test_a_question_that_is_cancelled_leaves_nothing(link: InProcess[ToScheduler]) -> None:
    client = ControlClient(link)
    asking = asyncio.create_task(client.flush_cache())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not client._waiting


async def test_a_question_is_answered_when_all_ranks_have_answered(link: InProcess[ToScheduler]) -> None:
    """The answer is the first rank's reply, or the first refusal."""
    client = ControlClient(link, num_ranks=3)
    asking = [asyncio.create_task(client.flush_cache()) for _ in range(2)]
    await asyncio.sleep(0)
    first, second = (question.id for question in link.drain() if isinstance(question, FlushCacheReqInput))
    for rank in (0, 2):
        client.answer(FlushCacheReqOutput(id=first, success=True, message=f"of {rank}", rank=rank))
        client.answer(FlushCacheReqOutput(id=second, success=rank == 0, message=f"of {rank}", rank=rank))
    await asyncio.sleep(0)
    assert not any(task.done() for task in asking)
    for number in (first, second):
        client.answer(FlushCacheReqOutput(id=number, success=True, message="of 1", rank=1))
    replies = await asyncio.gather(*asking)
    assert [(reply.success, reply.message) for reply in replies] == [(True, "of 0"), (False, "of 2")]


async def test_the_rank_that_knows_the_cause_of_a_refusal_tells_it(link: InProcess[ToScheduler]) -> None:
    """Also where the others refuse only since that one does."""
    client = ControlClient(link, num_ranks=3)
    asking = asyncio.create_task(client.command(lambda number: PauseGenerationReq(id=number, mode="abort")))
    await asyncio.sleep(0)
    (question,) = link.drain()
    assert isinstance(question, PauseGenerationReq)
    for rank, error in enumerate((PeerRefused("none does"), InvalidRequest("a pipe"), PeerRefused("none does"))):
        client.answer(msgspec.structs.replace(ControlReqOutput.refusing(question.id, error), rank=rank))
    with pytest.raises(InvalidRequest, match="a pipe"):
        (await asking).carried_out()
