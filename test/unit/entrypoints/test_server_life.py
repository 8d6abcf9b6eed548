"""A server's life, without processes: it is ready, serves, and ends in each of its ways with the exit code of that way.

Scheduler, detokenizer and further fronts are threads here; `test/server/test_processes.py` has the processes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fixtures.open_streams import Stream, ended, open_streams
from fixtures.patience import PATIENCE_S, answered, until
from fixtures.threaded_children import SMALL, ThreadedChildren, one_process
from mysglang.eval.exam import TINY
from mysglang.srt.entrypoints import server_life
from mysglang.srt.entrypoints.http_front import HttpFront
from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.entrypoints.server_life import serve
from mysglang.srt.errors import ConfigError, WorkerDied
from mysglang.srt.managers.scheduler_builder import Makers
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.exit_codes import ExitCode
from mysglang.srt.utils.hardware import Hardware
from mysglang.srt.utils.network import bind_http_socket

ROOMY = SMALL | {"max_total_tokens": 16384, "host": "127.0.0.1", "skip_server_warmup": False}
SHORT = {"text": "Count:", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True, "temperature": 0}}


@dataclass
class Life:
    """A server in this event loop."""

    url: str
    children: ThreadedChildren
    stop: asyncio.Event
    task: asyncio.Task[ExitCode]

    async def ready(self) -> None:
        async with httpx.AsyncClient() as client:

            async def health() -> int:
                assert not self.task.done(), self.task.result()
                return (await client.get(f"{self.url}/health")).status_code

            await answered(health, lambda status: status == 200)

    async def post(self, path: str, body: object) -> Any:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            response = await client.post(f"{self.url}{path}", json=body)
            assert response.status_code == 200, response.text
            return response.json() if response.content else None

    async def ended(self) -> ExitCode:
        return await asyncio.wait_for(asyncio.shield(self.task), PATIENCE_S)


@asynccontextmanager
async def living(makers: Makers | None = None, **options: Any) -> AsyncIterator[Life]:
    with one_process(), bind_http_socket("127.0.0.1", 0) as listener:
        args, config = find_model(ServerArgs.from_kwargs(Hardware(), **{**ROOMY, **options}))
        children = ThreadedChildren(args) if makers is None else ThreadedChildren(args, makers)
        stop = asyncio.Event()
        task = asyncio.create_task(serve(args, config, children, stop, listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield Life(url, children, stop, task)
        finally:
            stop.set()
            await asyncio.wait([task])


async def test_asked_to_end_it_finishes_what_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    async with living(drain_timeout=PATIENCE_S) as life, httpx.AsyncClient() as client:
        first = await answered(lambda: client.get(f"{life.url}/health"), lambda response: response.status_code == 503)
        assert "starting" in first.text
        await life.ready()
        assert f"answers on {life.url}" in capsys.readouterr().out
        assert (await life.post("/generate", SHORT))["meta_info"]["completion_tokens"] == 8
        body = SHORT | {"stream": True, "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
        (stream,) = await open_streams(life.url, 1, body)
        life.stop.set()
        refused = await answered(
            lambda: client.post(f"{life.url}/generate", json=SHORT), lambda r: r.status_code == 503
        )
        assert "shutting down" in refused.text
        assert await life.ended() is ExitCode.DONE
        await ended([stream])
        assert stream.complete and len(stream.frames) > 200


async def test_what_takes_too_long_is_cut_off() -> None:
    async with living(drain_timeout=0) as life:
        await life.ready()
        streams = await open_streams(life.url, 2)
        life.stop.set()
        assert await life.ended() is ExitCode.CUT_OFF
        await ended(streams)
        assert all("--drain-timeout" in str(stream.error) for stream in streams)


async def test_a_death_ends_the_server_and_its_streams(capsys: pytest.CaptureFixture[str]) -> None:
    async with living() as life:
        await life.ready()
        streams = await open_streams(life.url, 2)
        life.children.die("the scheduler is gone")
        assert await life.ended() is ExitCode.WORKER_DIED
        await ended(streams)
        assert all("the scheduler is gone" in str(stream.error) for stream in streams)
    assert capsys.readouterr().err.endswith("mysglang: error: the scheduler is gone\n")


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[HttpFront]:
    """The front doors of the server, the main process's first."""
    found: list[HttpFront] = []
    open_door = HttpFront.open

    async def note(door: HttpFront, *args: Any) -> None:
        found.append(door)
        await open_door(door, *args)

    monkeypatch.setattr(HttpFront, "open", note)
    return found


async def test_without_its_front_door_it_ends(doors: list[HttpFront], capsys: pytest.CaptureFixture[str]) -> None:
    async with living() as life:
        await life.ready()
        doors[0]._server.should_exit = True
        assert await life.ended() is ExitCode.WORKER_DIED
    assert "the HTTP front ended" in capsys.readouterr().err


async def test_a_start_that_fails_raises_its_cause() -> None:
    def no_worker(*_: Any) -> Any:
        raise MemoryError("none is left")

    async with living(Makers(worker=no_worker)) as life:
        with pytest.raises(WorkerDied, match="scheduler: MemoryError: none is left"):
            await life.ended()


async def test_a_wrong_recommended_value_ends_the_start_before_weights_are_waited_for(tmp_path: Path) -> None:
    shutil.copy(TINY / "config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": -1.0}))
    options = {"model_path": str(tmp_path), "load_format": "dummy", "skip_tokenizer_init": True}
    args, config = find_model(ServerArgs.from_kwargs(Hardware(), **{**ROOMY, **options}))

    async def wait_ready() -> None:
        raise AssertionError("weights are waited for")

    runtime: Any = SimpleNamespace(server_args=args, model_config=config, wait_ready=wait_ready)
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"generation_config.json: temperature"):
        await server_life._live(runtime, nothing, nothing)


async def accept_no_more(door: HttpFront) -> None:
    """Leaves all connections that come from now on to the other front."""

    async def close() -> None:
        for server in door._server.servers:
            server.close()

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(), door._server.servers[0].get_loop()))


class TestTwoFronts:
    """Both accept connections from one socket; which of them gets a connection is up to the kernel."""

    async def streams(self, life: Life, doors: list[HttpFront]) -> list[Stream]:
        """An open stream at each front."""
        await until(lambda: len(doors) == 2)
        await life.ready()
        first = await open_streams(life.url, 1)
        (taken,) = (door for door in doors if door.gate._open_requests)
        await accept_no_more(taken)
        second = await open_streams(life.url, 1)
        assert [door.gate._open_requests for door in doors] == [1, 1]
        return first + second

    async def test_both_end_their_streams_when_the_server_is_asked_to(self, doors: list[HttpFront]) -> None:
        async with living(tokenizer_worker_num=2, detokenizer_worker_num=2, drain_timeout=0) as life:
            streams = await self.streams(life, doors)
            life.stop.set()
            assert await life.ended() is ExitCode.CUT_OFF
            await ended(streams)
            assert all("--drain-timeout" in str(stream.error) for stream in streams)

    async def test_both_tell_of_a_death(self, doors: list[HttpFront]) -> None:
        async with living(tokenizer_worker_num=2) as life:
            streams = await self.streams(life, doors)
            life.children.die("the scheduler is gone")
            assert await life.ended() is ExitCode.WORKER_DIED
            await ended(streams)
            assert all("the scheduler is gone" in str(stream.error) for stream in streams)
