"""Damage to the input of a batch, and released memory, while its lines are asked: no answer is lost."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from fixtures.batch_desk import desk_in, line
from fixtures.patience import until
from fixtures.scripted_engine import Step, endless, hello
from mysglang.srt.entrypoints.openai import batches_run
from mysglang.srt.messages.outputs import RELEASED, Abort
from mysglang.srt.messages.requests import TokenizedGenerateReqInput


@pytest.mark.promise(50)
@pytest.mark.parametrize("ends", ["answered", "cancelled"])
async def test_an_input_that_is_torn_while_it_is_asked_costs_no_answers(ends: str, tmp_path: Path) -> None:
    asked = 0

    def tear() -> None:
        [content] = (tmp_path / "files").glob("*.bin")
        content.write_bytes(b"\0" * content.stat().st_size)

    def torn_at_the_third(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        nonlocal asked
        asked += 1
        if asked == 3 and ends == "answered":
            tear()
        return hello(request) if asked < 3 or ends == "answered" else endless(request)

    async with desk_in(tmp_path, torn_at_the_third, max_in_flight=1) as desk:
        batch = await desk.begin(*(line(f"n{i}") for i in range(6)))
        if ends == "cancelled":
            await until(lambda: asked == 3)
            tear()
            await desk.api.batches.cancel(batch.id)
        batch = await desk.end_of(batch)
        answers = 3 if ends == "answered" else 2
        assert batch.status == "failed" and batch.request_counts
        assert (batch.request_counts.completed, batch.request_counts.failed) == (answers, 0)
        assert batch.errors and batch.errors.data
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == ("invalid_json_line", answers + 1)
        assert len(await desk.entries(batch.output_file_id)) == answers


async def test_released_memory_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_run, "RETRY_S", 0.01)
    released = [True] * 3

    def at_times_released(request: TokenizedGenerateReqInput) -> Iterable[Step]:
        return [Step("", [], Abort("It has none.", 503, RELEASED))] if released and released.pop() else hello(request)

    async with desk_in(tmp_path, at_times_released) as desk:
        response = await desk.served.post("/generate", {"text": "Hi"})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        batch = await desk.end_of(await desk.begin(line("a"), line("b")))
        assert batch.request_counts and (batch.request_counts.completed, batch.request_counts.failed) == (2, 0)
    assert not released
