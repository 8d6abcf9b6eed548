"""A request that was kept asks the same again: nothing that it said is lost on the way through the file."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fixtures.full_disk import full_after
from fixtures.patience import PATIENCE_S
from mysglang.srt.entrypoints import request_dump
from mysglang.srt.entrypoints.request_dump import check_folder, dumped, written
from mysglang.srt.errors import InvalidRequest, Overloaded
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import parse_generate
from mysglang.srt.messages.outputs import Length
from mysglang.srt.messages.packing import pack_ids

PARAMS = {"max_new_tokens": 4, "temperature": 0.5}
ASKS: list[dict[str, Any]] = [
    {"input_ids": [5, 6], "sampling_params": PARAMS},
    {"input_ids": [5, 6], "sampling_params": {**PARAMS, "bad_words": ["a"], "allowed_token_ids": [1, 2]}},
    {"input_ids": [5, 6], "sampling_params": {**PARAMS, "beam_width": 4, "length_penalty": 2.0}},
    {
        "input_ids": [5, 6],
        "sampling_params": {**PARAMS, "custom_params": {"token_ids": [1]}},
        "custom_logit_processor": "DisallowedTokensLogitsProcessor",
    },
    {"input_ids": [5, 6], "sampling_params": PARAMS, "max_thinking_tokens": 9, "return_hidden_states": "last"},
    {"input_embeds": [[0.5, 1.5], [2.5, 3.5]], "sampling_params": PARAMS},
]


async def answered() -> AsyncGenerator[GenerationChunk, None]:
    yield GenerationChunk(
        index=0,
        rid="r",
        text="b",
        token_bytes=pack_ids([7]),
        finish_reason=Length(1),
        prompt_tokens=2,
        completion_tokens=1,
        cached_tokens=0,
        retractions=0,
        prompt_bytes=pack_ids([5, 6]),
    )


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ", ".join({**ask, **ask["sampling_params"]}))
async def test_it_asks_the_same_again(tmp_path: Path, ask: dict[str, Any]) -> None:
    obj = parse_generate(ask)
    async for _ in dumped(obj, answered(), str(tmp_path)):
        pass
    written()
    [file] = tmp_path.iterdir()
    record = orjson.loads(file.read_bytes())
    assert parse_generate(record["request"]) == obj
    assert record["answers"] == [{"text": "b", "output_ids": [7], "finish_reason": {"type": "length", "length": 1}}]


async def refused() -> AsyncGenerator[GenerationChunk, None]:
    raise Overloaded("The request queue is full.")
    yield


@pytest.mark.parametrize(
    ("prompt", "coming"),
    [
        ({"text": "Hi"}, refused()),
        ({"text": ["Hi", "there"]}, refused()),
        ({"input_ids": [5, 6]}, refused()),
        ({"input_ids": [[5, 6], [7]]}, refused()),
        ({"text": ["Hi", "there"]}, answered()),
    ],
)
async def test_a_prompt_that_nobody_answered_is_kept_as_it_came(
    tmp_path: Path, prompt: dict[str, Any], coming: AsyncGenerator[GenerationChunk, None]
) -> None:
    obj = parse_generate({**prompt, "sampling_params": PARAMS})
    with contextlib.suppress(Overloaded):
        async for _ in dumped(obj, coming, str(tmp_path)):
            pass
    written()
    [file] = tmp_path.iterdir()
    assert parse_generate(orjson.loads(file.read_bytes())["request"]) == obj


async def test_a_batch_of_one_stays_a_batch(tmp_path: Path) -> None:
    async for _ in dumped(parse_generate({"text": ["Hi"], "sampling_params": PARAMS}), answered(), str(tmp_path)):
        pass
    written()
    [file] = tmp_path.iterdir()
    assert orjson.loads(file.read_bytes())["request"]["input_ids"] == [[5, 6]]


@pytest.mark.parametrize("name", ["a file/below", "a\0b", "\ud800", "x" * 300])
def test_a_folder_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(InvalidRequest, match="dump_requests_folder: nothing can be kept in '/"):
        check_folder(tmp_path / name)


@pytest.mark.promise(45)
async def test_a_disk_that_takes_nothing_delays_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    append = request_dump._append
    monkeypatch.setattr(request_dump, "_append", lambda folder, line: (goes_on.wait(PATIENCE_S), append(folder, line)))
    monkeypatch.setattr(request_dump, "MAX_WAITING", 1)
    for _ in range(3):
        async for _ in dumped(parse_generate(ASKS[0]), answered(), str(tmp_path)):
            pass
    assert not list(tmp_path.iterdir())
    goes_on.set()
    written()
    [file] = tmp_path.iterdir()
    assert file.read_bytes().count(b"\n") == 1


async def test_a_disk_that_fills_in_the_middle_of_a_line_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async for _ in dumped(parse_generate(ASKS[0]), answered(), str(tmp_path)):
            pass
        written()

    await ask()
    with monkeypatch.context() as full:
        full.setattr(os, "write", full_after(20))
        await ask()
    assert "could not be added to the request dump" in caplog.text
    await ask()
    [file] = tmp_path.iterdir()
    assert [orjson.loads(line)["rid"] for line in file.read_bytes().splitlines()] == [None, None]
    assert file.stat().st_mode & 0o777 == 0o600
