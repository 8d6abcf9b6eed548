"""A client that is gone: whatever its request was doing, no step is spent on it any more and nothing of it is left."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from fixtures.covering import pairwise
from fixtures.oracle import assert_quiet, debug_state, wait_for_places, wait_for_state
from fixtures.patience import PATIENCE_S
from fixtures.raw_http import Leaving, Manner, ask
from fixtures.server_process import ServerProcess
from fixtures.toy_server import PROGRAM, Faults, reference
from fixtures.warm_start import WarmServer

KEY = "the-admin-key"
OPTIONS = ("--log-level", "warning", "--admin-api-key", KEY, "--max-running-requests", "2", "--page-size", "4")
STEP_S = 0.05
LONG = {"max_new_tokens": 1500, "ignore_eos": True}
SLOW_TO_COMPILE = r"(\d{1,300}[a-z]{1,300}){1,20}"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Steps of 50 ms, prompts in chunks of 16 tokens."""
    # The context is what the KV cache holds, so that the log has no warning.
    options = (*OPTIONS, "--context-length", "2048", "--chunked-prefill-size", "16")
    with WarmServer(*options, program=PROGRAM, **Faults(step_ms=STEP_S * 1000).env) as process:
        assert process.url
        yield process


def address(url: str) -> tuple[str, int]:
    return httpx.URL(url).host, httpx.URL(url).port or 80


def assert_no_step_more(url: str) -> None:
    """There is no client, so no step may run."""
    before = forward_steps(url)
    # Each question is answered in a turn of the scheduler, which would launch a step if it had one.
    assert [forward_steps(url) for _ in range(6)] == [before] * 6


def forward_steps(url: str) -> int:
    return int(debug_state(url, KEY)["forward_steps"])


Reached = Callable[[str, int], object]
"""Waits for a state of the server at this address, which had computed so many steps before the request came."""


def steps(count: int) -> Reached:
    return lambda url, before: wait_for_state(url, KEY, lambda state: state["forward_steps"] >= before + count)


def waiting(url: str, _before: int) -> None:
    wait_for_places(url, KEY, running=0, waiting=1)


def seconds(count: float) -> Reached:
    """A fixed time, for states that the server does not report."""
    return lambda _url, _before: time.sleep(count)


@dataclass(frozen=True)
class State:
    """State of a request when its client leaves."""

    body: dict[str, Any]
    reached: Reached
    body_part: float = 1.0
    accepted: bool = True
    """True if the scheduler has the request by then."""


PROMPT = list(range(100, 130))
STATES = {
    "upload": State({"input_ids": PROMPT * 20, "sampling_params": LONG}, seconds(0.1), body_part=0.5, accepted=False),
    "tokenizing": State(
        {"text": "to be or not to be " * 60_000, "sampling_params": LONG}, seconds(0.05), accepted=False
    ),
    "grammar": State({"input_ids": PROMPT, "sampling_params": {**LONG, "regex": SLOW_TO_COMPILE}}, waiting),
    "mid-chunk": State({"input_ids": PROMPT * 15, "sampling_params": LONG}, steps(8)),
    "decoding": State({"input_ids": PROMPT, "sampling_params": LONG}, steps(10)),
    "last token": State({"input_ids": [7, 8], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}, steps(3)),
}
WAYS: tuple[Leaving, ...] = ("reset", "close")
CASES = pairwise({"name": list(STATES), "stream": [False, True], "leaves": WAYS})


@pytest.mark.promise(13)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
async def test_whatever_it_is_doing(server: ServerProcess, case: dict[str, Any]) -> None:
    state, url = STATES[case["name"]], server.url
    await asyncio.to_thread(assert_quiet, url, admin_key=KEY)
    begun = debug_state(url, KEY)
    before = begun["requests"]
    reached = partial(asyncio.to_thread, state.reached, url, begun["forward_steps"])
    manner = Manner(leaves=case["leaves"], until=reached, body_part=state.body_part)
    await ask(address(url), "/generate", {**state.body, "stream": case["stream"]}, manner=manner)
    at_leaving = await asyncio.to_thread(forward_steps, url)
    await asyncio.to_thread(assert_quiet, url, admin_key=KEY)
    # Neither for a whole answer of 1,500 tokens nor for the rest of the prompt, whose chunks are 29 in all.
    assert forward_steps(url) - at_leaving < 15
    await asyncio.to_thread(assert_no_step_more, url)
    after = debug_state(url, KEY)["requests"]
    assert after["accepted"] - before["accepted"] == state.accepted
    assert not server.stderr


@pytest.mark.promise(13)
@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_waits_for_a_place(server: ServerProcess, stream: bool) -> None:
    """Requests that have the places are not affected."""
    url, tokens = server.url, 100
    before = forward_steps(url)

    async def places(waiting: int) -> dict[str, Any]:
        return await asyncio.to_thread(wait_for_places, url, KEY, running=2, waiting=waiting)

    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        prompts = [[11, 12], [13, 14]]
        params = {"max_new_tokens": tokens, "ignore_eos": True}
        bodies = [{"input_ids": prompt, "sampling_params": params} for prompt in prompts]
        running = [asyncio.create_task(client.post("/generate", json=body)) for body in bodies]
        await places(0)
        manner = Manner(leaves="reset", until=partial(places, 1))
        body = {"input_ids": PROMPT, "sampling_params": LONG, "stream": stream}
        await ask(address(url), "/generate", body, manner=manner)
        state = await places(0)
        assert state["forward_steps"] - before < tokens, "by now the one that left may run in the place of another"
        for prompt, task in zip(prompts, running, strict=True):
            assert (await task).json()["output_ids"] == reference(prompt, tokens, ignore_eos=True)


@pytest.mark.promise(12)
async def test_a_reset_ends_it_within_a_few_steps(server: ServerProcess) -> None:
    """Steps take 50 ms each: the one that runs, the one that is planned, and the delay on a busy machine."""
    url = server.url
    await asyncio.to_thread(assert_quiet, url, admin_key=KEY)
    body = {"input_ids": PROMPT, "sampling_params": LONG, "stream": True}
    await ask(address(url), "/generate", body, manner=Manner(leaves="reset", after_s=20, after_frames=5))
    at_reset = forward_steps(url)
    await asyncio.to_thread(assert_quiet, url, admin_key=KEY)
    assert forward_steps(url) - at_reset <= 3
    assert_no_step_more(url)
