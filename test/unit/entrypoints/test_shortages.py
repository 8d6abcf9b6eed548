"""No file can be opened any more, or no thread started, in the midst of serving: every route answers all the same, or
with a 503; nothing is lost, and all is well once there is room again.
"""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import patch

import openai
import pytest

from fixtures.batch_desk import CHAT, OpenDesk, desk_in, jsonl, line

LONG = "Hello there. " * 20_000
"""Beyond what is parsed, checked and tokenized on the event loop."""
LARGE = 2 << 20
"""Bytes of an upload that goes to a file while it comes."""
MESSAGES = [{"role": "user", "content": "Hi"}]


@contextmanager
def no_more_files() -> Iterator[None]:
    """The next number of a descriptor is beyond the limit of this process."""
    os.close(next_number := os.open(os.devnull, os.O_RDONLY))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_more_threads() -> Iterator[None]:
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        yield


SHORTAGES: dict[str, Callable[[], AbstractContextManager[None]]] = {"files": no_more_files, "threads": no_more_threads}


class Asking:
    """Counts the answers to whatever a client may ask; with `short`, some may be a 503 that may be tried again."""

    def __init__(self, desk: OpenDesk, file: str) -> None:
        self._desk = desk
        self._file = file
        self.answered = self.refused = 0

    async def everything(self, *, short: bool) -> None:
        for body in ({"text": "Hi"}, {"text": LONG}, {"input_ids": [5] * 20_000}):
            await self._post("/generate", body, short)
        for path, body in (
            ("/v1/chat/completions", {"messages": MESSAGES}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
            ("/v1/completions", {"prompt": ["Hi"] * 100}),
            ("/v1/responses", {"input": "Hi"}),
            ("/v1/responses", {"input": "Hi", "background": True}),
            ("/v1/messages", {"messages": MESSAGES, "model": "m", "max_tokens": 1}),
            ("/api/chat", {"messages": MESSAGES, "model": "m"}),
            ("/tokenize", {"prompt": LONG}),
        ):
            await self._post(path, body, short)
        for size in (10, LARGE):
            await self._files(lambda size=size: self._upload(b"a" * size), short)  # type: ignore[misc]
        await self._files(lambda: self._desk.api.files.content(self._file), short)
        await self._files(lambda: self._desk.api.files.list(), short)
        await self._files(self._batch, short)

    async def _post(self, path: str, body: object, short: bool) -> None:
        answer = await self._desk.served.post(path, body)
        # The engine of the tests has a short context, which a long text may pass.
        self._count(answer.status_code in (200, 400), path, answer.status_code, dict(answer.headers), short)

    async def _files(self, ask: Callable[[], object], short: bool) -> None:
        try:
            await ask()  # type: ignore[misc]
        except openai.APIStatusError as error:
            self._count(False, error.request.url.path, error.status_code, dict(error.response.headers), short)
        else:
            self._count(True, "", 200, {}, short)

    def _count(self, good: bool, path: str, status: int, headers: dict[str, str], short: bool) -> None:
        self.answered += good
        if not good:
            self.refused += 1
            assert short and status == 503 and headers["retry-after"], (path, status)

    async def _upload(self, content: bytes) -> str:
        return (await self._desk.api.files.create(file=("a.jsonl", content), purpose="batch")).id

    async def _batch(self) -> None:
        batch = await self._desk.api.batches.create(input_file_id=self._file, endpoint=CHAT, completion_window="24h")
        self.batch = batch


@pytest.mark.promise(46)
@pytest.mark.parametrize("shortage", SHORTAGES)
async def test_promise_46_every_route_survives_a_shortage(tmp_path: Path, shortage: str) -> None:
    async with desk_in(tmp_path) as desk:
        # The client loads its own parts when they are first asked for.
        await desk.end_of(await desk.begin(line("first")))
        file = await desk.upload(line("a"))
        asking = Asking(desk, file)
        with SHORTAGES[shortage]():
            await asking.everything(short=True)
        assert asking.answered and asking.refused, "some need files and threads, and some do not"
        await assert_whole(desk, tmp_path)
        asking = Asking(desk, file)
        await asking.everything(short=False)
        batch = await desk.end_of(asking.batch)
        assert batch.status == "completed"
        content = await desk.api.files.content(file)
        assert content.content == jsonl([line("a")])
        await assert_whole(desk, tmp_path)


async def assert_whole(desk: OpenDesk, folder: Path) -> None:
    """The files on the disk are those that clients know."""
    known = {each.id async for each in desk.api.files.list()}
    assert known == {path.stem for path in folder.rglob("*.bin")}, "a part of an upload is left"
    assert not list(folder.rglob("*.unfinished"))
