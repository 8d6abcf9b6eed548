"""Attacks by one key on what all keys share: it fills each room, looks that it gets the part that it should, and takes
away what it left. A share that does not come back is seen by the next blow, which gets less.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from typing import Any

import httpx
import psutil

from chaos.attack import Attack, Target, attack
from fixtures.grammar_bombs import BOMBS, COUNTS, LARGE, STARS
from fixtures.toy_server import VOCAB

COMPILER = "mysglang::grammar_compiler"
FILE_BYTES = 1 << 20
FILES_GB = 0.02
"""The room for files of a server that is attacked."""
LEAST_FILES = 10
"""Number of files that is half of that room."""
UNFINISHED_S = 30.0
"""Seconds by which the server has surely ended an upload that its client left unfinished. Until then it takes a part of
its key's room."""
LEAST_BATCHES = 30
"""Half of the hundred batches that may be open, minus those that ended before the others had begun."""
CHAT_LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
}


@attack(200, 429, 503)
async def sessions(target: Target, attack: Attack) -> None:
    """A hundred, some with long turns; all are closed again."""
    async with target.client() as client:
        opened = await asyncio.gather(*(client.post("/open_session", json={"timeout": 60}) for _ in range(100)))
        names = [answer.json() for answer in opened if answer.status_code == 200]
        for answer in opened:
            target.heard(attack, answer.status_code, answer.text)
        target.expect(attack, len(names) == len(opened), f"{len(names)} sessions of {len(opened)}")

        async def turn(name: str) -> httpx.Response:
            params = {"max_new_tokens": 1}
            body = {"input_ids": [7] * 200, "sampling_params": params, "session_params": {"id": name}}
            return await client.post("/generate", json=body)

        for answer in await asyncio.gather(*map(turn, names[:10])):
            target.heard(attack, answer.status_code, answer.text)
        await asyncio.gather(*(client.post("/close_session", json={"session_id": name}) for name in names))


@attack(200, 400, 408, every_s=2)
async def files(target: Target, attack: Attack) -> None:
    """As many as there is room for. One may come too slowly, since this process attacks in other ways too."""
    async with target.client() as client:
        kept, status, until = 0, 200, time.monotonic() + UNFINISHED_S
        while status in (200, 408) or (kept < LEAST_FILES and time.monotonic() < until):
            status = (await upload(client, b"a" * FILE_BYTES)).status_code
            target.heard(attack, status)
            kept += status == 200
        await remove_files(client)
        target.expect(attack, kept >= LEAST_FILES, f"room for {kept} files only")


@attack(200, 429, every_s=5)
async def batches(target: Target, attack: Attack) -> None:
    """As many as may be open; all are cancelled."""
    async with target.client() as client:
        lines = b"\n".join(json.dumps(CHAT_LINE | {"custom_id": f"{number}"}).encode() for number in range(5))
        file = (await upload(client, lines)).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        created = await asyncio.gather(*(client.post("/v1/batches", json=body) for _ in range(70)))
        for answer in created:
            target.heard(attack, answer.status_code, answer.text)
        names = [answer.json()["id"] for answer in created if answer.status_code == 200]
        target.expect(attack, len(names) >= LEAST_BATCHES, f"room for {len(names)} batches only")
        await asyncio.gather(*(client.post(f"/v1/batches/{name}/cancel") for name in names))
        for name in names:
            while (await client.get(f"/v1/batches/{name}")).json()["status"] in (
                "validating",
                "in_progress",
                "cancelling",
            ):
                await asyncio.sleep(0.05)
        await remove_files(client)


async def upload(client: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})


async def remove_files(client: httpx.AsyncClient) -> None:
    while found := (await client.get("/v1/files", params={"limit": 100})).json()["data"]:
        await asyncio.gather(*(client.delete(f"/v1/files/{file['id']}") for file in found))


@attack(200, 429, 503)
async def stored_responses(target: Target, attack: Attack) -> None:
    await ask_and_delete(target, attack, {"input": "Hi " * 1000, "max_output_tokens": 1}, 20)


@attack(200, 429)
async def jobs_in_the_background(target: Target, attack: Attack) -> None:
    await ask_and_delete(target, attack, {"input": "Hi", "max_output_tokens": 40, "background": True}, 60)


async def ask_and_delete(target: Target, attack: Attack, body: dict[str, Any], count: int) -> None:
    async with target.client() as client:
        answers = await asyncio.gather(*(client.post("/v1/responses", json=body) for _ in range(count)))
        for answer in answers:
            target.heard(attack, answer.status_code, answer.text)
        names = [answer.json()["id"] for answer in answers if answer.status_code == 200]
        if body.get("background"):
            # Others wait in the queue, which this key may have filled itself.
            target.expect(attack, len(names) == count, f"room for {len(names)} jobs only")
            await asyncio.gather(*(client.post(f"/v1/responses/{name}/cancel") for name in names))
        for answer in await asyncio.gather(*(client.delete(f"/v1/responses/{name}") for name in names)):
            # What is still being cancelled is deleted later.
            target.heard(attack, answer.status_code, answer.text)


@attack(200, 429, 503)
async def queue(target: Target, attack: Attack) -> None:
    """More prompts at once than may wait, whose client leaves."""
    prompts = [[target.draw.randrange(3, VOCAB) for _ in range(20)] for _ in range(20)]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
    leaving = [target.draw.choice([None, 0.1, 0.5]) for _ in range(4)]
    content = json.dumps(body).encode()
    await asyncio.gather(*(target.send(attack, "/generate", content, leave_after_s=leave) for leave in leaving))


@attack(200, 400, 503)
async def long_texts(target: Target, attack: Attack) -> None:
    """For all threads that tokenize."""
    content = json.dumps({"prompt": "word " * 200_000}).encode()
    leaving = [target.draw.choice([None, 0.1]) for _ in range(4)]
    await asyncio.gather(*(target.send(attack, "/tokenize", content, leave_after_s=leave) for leave in leaving))


@attack(200, 400, 429, 503)
async def grammar_bombs(target: Target, attack: Attack) -> None:
    """Several at once, some of them new, some of whose clients leave."""
    number = target.draw.randrange(1 << 30)
    new = [{"regex": f"{STARS}{number}"}, {"regex": f"{COUNTS}{number}"}]
    drawn = target.draw.choices([*BOMBS.values(), *LARGE.values(), *new], k=4)
    leaving = [target.draw.choice([None, 0.2, 1.0]) for _ in drawn]

    async def ask(params: dict[str, Any], leave: float | None) -> None:
        body = {"input_ids": [7, 8, 9], "sampling_params": {"max_new_tokens": 60, **params}}
        await target.send(attack, "/generate", json.dumps(body).encode(), leave_after_s=leave)

    await asyncio.gather(*map(ask, drawn, leaving))


@attack(every_s=60)
async def compiler_killed(target: Target, attack: Attack) -> None:
    """The process that compiles grammars, in the midst of its work if there is any. A grammar survives one death."""
    if kill_compiler(target.pid):
        target.answers[f"{attack.name}: killed"] += 1


def kill_compiler(pid: int) -> bool:
    """Kill that of the server whose main process is `pid`; False if it has none now."""
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == [COMPILER] and process.parent().cmdline()[:1] != [COMPILER]:
                process.kill()
                return True
    return False


def on_rooms() -> Iterable[Attack]:
    yield from (sessions, stored_responses, jobs_in_the_background)


def on_files() -> Iterable[Attack]:
    yield from (files, batches)


def on_queues() -> Iterable[Attack]:
    yield from (queue, long_texts)


def on_grammars() -> Iterable[Attack]:
    yield from (grammar_bombs, compiler_killed)
