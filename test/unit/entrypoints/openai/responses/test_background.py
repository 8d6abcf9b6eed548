"""Background jobs: bounded, and shared between API keys."""

import asyncio

import pytest

from fixtures.callers import asked_by
from mysglang.srt.entrypoints.openai.responses.background import BackgroundJobs
from mysglang.srt.errors import Overloaded
from mysglang.srt.managers.caller import Caller


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


def begin(jobs: BackgroundJobs, key: str, name: str) -> None:
    with asked_by(Caller(api_key=key)):
        jobs.start(name, sleep_for_ever(), lambda error: None)


@pytest.mark.promise(44)
async def test_a_flood_of_one_key_leaves_the_others_their_part() -> None:
    jobs = BackgroundJobs(num_keys=2, max_jobs=8)
    for number in range(6):
        begin(jobs, "flood", f"f{number}")
    with pytest.raises(Overloaded):
        begin(jobs, "flood", "one more")
    for name in ("x", "y"):
        begin(jobs, "b", name)
    # The place of a job is free once its task has ended.
    assert jobs.stop("f0") and not jobs.stop("f0")
    for _ in range(3):
        await asyncio.sleep(0)
    begin(jobs, "flood", "one more")
    for name in ("one more", "x", "y", *(f"f{number}" for number in range(1, 6))):
        assert jobs.stop(name)


async def test_one_key_may_have_all() -> None:
    jobs = BackgroundJobs(max_jobs=2)
    begin(jobs, "", "x")
    begin(jobs, "", "y")
    with pytest.raises(Overloaded):
        begin(jobs, "", "z")
    assert jobs.stop("x") and jobs.stop("y")
