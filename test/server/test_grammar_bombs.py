"""Promise 34: grammars that would take for ever are refused in time, and no other request waits for that."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from fixtures.grammar_bombs import BOMBS, COUNTS, LARGE, STARS
from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S, until
from fixtures.server_process import ServerProcess
from fixtures.side_by_side import assert_hardly_longer, percentile
from fixtures.toy_server import PROGRAM, Faults, reference
from fixtures.warm_start import WarmServer

pytest.importorskip("xgrammar")

LIMIT_S = 2.0
"""For compiling."""

KEY, OTHER_KEY = {"Authorization": "Bearer one"}, {"Authorization": "Bearer other"}
ADMIN = "admin"

SOON = "[0-9]{40}"
"""More tokens than a grammar is tried out with."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose steps take 10 ms, in which the host does next to nothing. It has two keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("one\nother\n")
    options = ("--log-level", "critical", "--grammar-compile-timeout", f"{LIMIT_S}", "--max-total-tokens", "16384")
    options += ("--api-key-file", str(keys), "--admin-api-key", ADMIN)
    with WarmServer(*options, program=PROGRAM, **Faults(step_ms=10).env) as started:
        # The libraries are loaded when the first grammar comes, which takes seconds and is no bomb's fault.
        httpx.post(
            f"{started.url}/generate", json=body({"regex": "[a-c]+"}), headers=KEY, timeout=PATIENCE_S
        ).raise_for_status()
        yield started


@pytest.fixture(scope="module")
def patient_server() -> Iterator[ServerProcess]:
    """A server whose limit for compiling no machine reaches with a normal grammar."""
    options = ("--log-level", "critical", "--grammar-compile-timeout", f"{PATIENCE_S}")
    with WarmServer(*options, program=PROGRAM, **Faults().env) as started:
        yield started


def body(params: dict[str, Any], prompt: int = 7) -> dict[str, Any]:
    return {"input_ids": [prompt, 8, 9], "sampling_params": {"max_new_tokens": 90, "min_new_tokens": 60, **params}}


@pytest.mark.promise(34)
@pytest.mark.parametrize("name", BOMBS)
def test_promise_34_bombs_are_refused_in_time(server: ServerProcess, name: str) -> None:
    answer = httpx.post(f"{server.url}/generate", json=body(BOMBS[name]), headers=KEY, timeout=PATIENCE_S)
    assert answer.status_code == 400, answer.text[:300]
    assert_quiet(server.url, admin_key=ADMIN)


@pytest.mark.promise(34)
@pytest.mark.parametrize("name", LARGE)
def test_promise_34_what_is_only_large_is_served(patient_server: ServerProcess, name: str) -> None:
    params = {**LARGE[name], "min_new_tokens": 0}
    answer = httpx.post(f"{patient_server.url}/generate", json=body(params), timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["text"].startswith(('"', "["))


@pytest.mark.promise(34)
async def test_promise_34_others_wait_hardly_longer_for_their_tokens(server: ServerProcess) -> None:
    numbers, compiler = itertools.count(), server.child("mysglang::grammar_compiler")
    async with httpx.AsyncClient(base_url=server.url, headers=KEY, timeout=PATIENCE_S) as client:

        async def gaps_of(prompt: int) -> list[float]:
            """Seconds between the tokens of one stream, which must be the right ones."""
            params = {"max_new_tokens": 100, "min_new_tokens": 0, "ignore_eos": True}
            gaps, last = list[float](), time.monotonic()
            async with client.stream("POST", "/generate", json=body(params, prompt) | {"stream": True}) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: {"):
                        gaps.append(time.monotonic() - last)
                        last, found = time.monotonic(), json.loads(line.removeprefix("data: "))
            assert found["output_ids"] == reference([prompt, 8, 9], 100, ignore_eos=True)
            return gaps[1:]

        async def slowest_gaps() -> float:
            """The gap that 95 % of those of eight streams do not exceed."""
            streams = await asyncio.gather(*map(gaps_of, range(20, 28)))
            return percentile([gap for gaps in streams for gap in gaps], 0.95)

        @asynccontextmanager
        async def bombed() -> AsyncIterator[None]:
            """Two bombs at a time, of which none was seen before."""

            async def explode() -> None:
                for number in numbers:
                    bomb = STARS if number % 2 else COUNTS
                    answer = await client.post("/generate", json=body({"regex": f"{bomb}{number}"}))
                    assert answer.status_code == 400, answer.text[:300]

            exploding = [asyncio.create_task(explode()) for _ in range(2)]
            await until(lambda: len(compiler.children()) == 2)
            yield
            assert not any(task.done() for task in exploding)
            for task in exploding:
                task.cancel()
            await asyncio.gather(*exploding, return_exceptions=True)

        async def beside_bombs() -> float:
            async with bombed():
                return await slowest_gaps()

        await assert_hardly_longer(beside_bombs, slowest_gaps, bound=2.0)
    await asyncio.to_thread(assert_quiet, server.url, ADMIN)


@pytest.mark.promise(43)
@pytest.mark.promise(44)
async def test_promise_44_bombs_of_one_key_do_not_hold_up_grammars_of_another(server: ServerProcess) -> None:
    """Thirty of them would take a minute. And promise 43: when their clients leave, they are not compiled any more."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits) as client:

        async def ask(key: dict[str, str], regex: str) -> httpx.Response:
            asked = {"input_ids": [7], "sampling_params": {"max_new_tokens": 1, "regex": regex}}
            return await client.post("/generate", json=asked, headers=key)

        bombs = [asyncio.create_task(ask(KEY, f"{COUNTS}{number}")) for number in range(100, 130)]
        compiler = server.child("mysglang::grammar_compiler")
        await until(lambda: len(compiler.children()) >= 2)
        for number in range(3):
            answer = await ask(OTHER_KEY, f"[a-c]+{number}")
            assert answer.status_code == 200
        assert sum(bomb.done() for bomb in bombs) < 20, "most of them still wait for their turns"
        for bomb in bombs:
            bomb.cancel()
        await asyncio.gather(*bombs, return_exceptions=True)
        await until(lambda: not (compiler.children()))
    await asyncio.to_thread(assert_quiet, server.url, ADMIN)
