"""Requests for which there is no room or no time, on a server around the toy device, whose steps take as long as the
test says.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet, debug_state, wait_for_places
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess, suspended
from fixtures.toy_server import PROGRAM, Faults, reference
from fixtures.warm_start import WarmServer
from mysglang.srt.utils.exit_codes import ExitCode

KEY = "the-admin-key"


@contextmanager
def toy(*options: str, step_ms: float) -> Iterator[ServerProcess]:
    options = ("--log-level", "critical", "--admin-api-key", KEY, *options)
    with WarmServer(*options, program=PROGRAM, **Faults(step_ms=step_ms).env) as server:
        assert server.url
        yield server


def body(prompt: list[int], max_new: int, *, stream: bool = False) -> dict[str, Any]:
    params = {"max_new_tokens": max_new, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": params, "stream": stream}


async def until(url: str, running: int, waiting: int) -> None:
    """Wait until so many requests run and wait."""
    await asyncio.to_thread(wait_for_places, url, KEY, running=running, waiting=waiting)


@pytest.mark.promise(17)
@pytest.mark.parametrize("fronts", [1, 2])
async def test_a_full_queue_refuses_at_once(fronts: int) -> None:
    """One runs and eight wait: the next is refused, whichever it is, while the scheduler does nothing at all."""
    options = ("--max-running-requests", "1", "--max-queued-requests", "8", "--served-model-name", "m")
    with toy(*options, "--tokenizer-worker-num", f"{fronts}", step_ms=200) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            asking = [asyncio.create_task(client.post("/generate", json=body([7, 7, i], 1000))) for i in range(9)]
            await until(server.url, 1, 8)
            with suspended(server.child("mysglang::scheduler_TP0")):
                for path, extra in [("/generate", body([1], 4)), ("/generate", body([1], 4, stream=True))] * 5:
                    answer = await client.post(path, json=extra)
                    assert answer.status_code == 429
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["error"]["type"] == "RateLimitError"
                chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
                assert (await client.post("/v1/chat/completions", json=chat)).status_code == 429
            for task in asking:
                task.cancel()
        assert_quiet(server.url, admin_key=KEY)
        counts = debug_state(server.url, KEY)["requests"]
        assert (counts["refused"], counts["aborted"]) == (11, 9)


@pytest.mark.promise(18)
async def test_who_waits_or_runs_too_long_is_answered_so() -> None:
    """One place: one request runs until its time is over, one waits until its time is over, and one comes in time."""
    options = ("--max-running-requests", "1", "--req-waiting-timeout", "0.5", "--req-running-timeout", "4")
    with toy(*options, step_ms=20) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            begun = time.monotonic()
            runs = asyncio.create_task(client.post("/generate", json=body([7], 1900)))
            await until(server.url, 1, 0)
            waited = time.monotonic()
            waits = await client.post("/generate", json=body([8], 4, stream=True))
            assert time.monotonic() - waited >= 0.4
            assert waits.status_code == 503 and "retry-after" in waits.headers
            assert waits.json()["error"]["type"] == "RequestTimeoutError"
            assert "waiting timeout" in waits.json()["error"]["message"]
            cut = await runs
            assert time.monotonic() - begun >= 3.9
            assert cut.status_code == 503 and "running timeout" in cut.json()["error"]["message"]
            after = await client.post("/generate", json=body([9, 9], 10))
            assert after.json()["output_ids"] == reference([9, 9], 10, ignore_eos=True)
        assert_quiet(server.url, admin_key=KEY)
        counts = debug_state(server.url, KEY)["requests"]
        assert counts["timed_out"] == 2
        assert counts["accepted"] == counts["finished"] + counts["aborted"] + counts["timed_out"]


@pytest.mark.promise(11)
async def test_arrivals_do_not_prolong_a_drain() -> None:
    """An endless stream, and new requests all the time: all of these are refused, and the end comes as said."""
    with toy("--drain-timeout", "1", step_ms=20) as server:
        statuses: list[int] = []
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            endless = asyncio.create_task(client.post("/generate", json=body([7], 1900, stream=True)))
            await until(server.url, 1, 0)
            server.send(signal.SIGTERM)
            while server.popen.poll() is None:
                try:
                    statuses.append((await client.post("/generate", json=body([8], 2))).status_code)
                except httpx.TransportError:
                    break
            assert await asyncio.to_thread(server.wait) == ExitCode.CUT_OFF
            text = (await endless).text
        # The first ones may have come before the signal did.
        assert set(statuses[statuses.index(503) :]) == {503}
        assert '"code":"shutting_down"' in text and "[DONE]" not in text
