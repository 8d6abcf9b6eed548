"""The request log tells that and how long, never what; and changes nothing of the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from mysglang.srt.entrypoints.crash_records import NoCrashRecords
from mysglang.srt.entrypoints.front import Manager, RequestLogSettings
from mysglang.srt.entrypoints.request_log import LoggedManager
from mysglang.srt.errors import Overloaded
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import Length
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.sampling.sampling_params import SamplingParams

SECRET = "a secret"


def chunk(*, last: bool) -> GenerationChunk:
    return GenerationChunk(
        index=0,
        rid="r1",
        text=SECRET,
        token_bytes=pack_ids([1]),
        finish_reason=Length(2) if last else None,
        prompt_tokens=3,
        completion_tokens=2,
        cached_tokens=1,
        retractions=0,
    )


class TwoChunks:
    """A manager that answers everything with two chunks."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.closed = 0
        self.open_requests = 5

    async def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        try:
            yield chunk(last=False)
            if self.error is not None:
                raise self.error
            yield chunk(last=True)
        finally:
            self.closed += 1

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> int:
        return len(rid) + abort_all


def logged(inner: Any) -> LoggedManager:
    return LoggedManager(cast("Manager", inner), RequestLogSettings(log_requests=True), NoCrashRecords())


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


async def test_one_line_in_one_line_out(caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(temperature=0.5, stop=[SECRET])
    chunks = [
        item
        async for item in logged(TwoChunks()).generate_request(GenerateReqInput(text=SECRET, sampling_params=params))
    ]
    assert len(chunks) == 2
    received, finished = caplog.messages
    assert "1 x text of 8 characters" in received
    assert "temperature=0.5" in received and "stop=1 entries" in received
    assert finished.startswith("Finish: call 1, rid=r1, length, 3 prompt tokens (1 cached), 2 new, ")
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
async def test_of_a_grammar_only_the_size_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request = GenerateReqInput(text="x", sampling_params=SamplingParams(**{name: SECRET}))
    async for _ in logged(TwoChunks()).generate_request(request):
        pass
    assert f"{name}=8 characters" in caplog.messages[0]
    assert SECRET not in caplog.text


async def test_batches_of_ids(caplog: pytest.LogCaptureFixture) -> None:
    request = GenerateReqInput(input_ids=[[1, 2], [3]], sampling_params=[SamplingParams(), SamplingParams()])
    async for _ in logged(TwoChunks()).generate_request(request):
        pass
    assert "2 x input_ids of 2, 1 tokens, stream=False, default sampling" in caplog.messages[0]


async def test_no_logs_means_none(caplog: pytest.LogCaptureFixture) -> None:
    async for _ in logged(TwoChunks()).generate_request(GenerateReqInput(text="x", no_logs=True)):
        pass
    assert caplog.messages == []


async def test_a_failure_is_told_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Overloaded):
        async for _ in logged(TwoChunks(Overloaded("full"))).generate_request(GenerateReqInput(text="x", rid="r2")):
            pass
    assert caplog.messages[-1].startswith("Fail: call 1, rid=r2, Overloaded")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([[0.5, 1], [2, 3], [4, 5]], "1 x input_embeds of 3"),
        ([[[0.5, 1]], [[2, 3], [4, 5]]], "2 x input_embeds of 1, 2"),
    ],
)
async def test_vectors_are_counted(caplog: pytest.LogCaptureFixture, prompt: Any, said: str) -> None:
    async for _ in logged(TwoChunks()).generate_request(GenerateReqInput(input_embeds=prompt)):
        pass
    assert f"{said} tokens" in caplog.messages[0]


async def test_a_name_that_would_write_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    request = GenerateReqInput(text="x", rid="a\n[2026-01-01] ERROR: gone" + "!" * 1000)
    with pytest.raises(Overloaded):
        async for _ in logged(TwoChunks(Overloaded("full"))).generate_request(request):
            pass
    assert all("\n" not in line and len(line) < 500 for line in caplog.messages)
    assert "a\\n[2026-01-01] ERROR: gone!" in caplog.messages[0]


async def test_leaving_early_closes_the_request() -> None:
    inner = TwoChunks()
    chunks = logged(inner).generate_request(GenerateReqInput(text="x"))
    await anext(chunks)
    await chunks.aclose()
    assert inner.closed == 1


def test_other_verbs_pass_through() -> None:
    assert logged(TwoChunks()).abort_request("abc", abort_all=True) == 4
    assert logged(TwoChunks()).open_requests == 5
