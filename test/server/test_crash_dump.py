"""A server that dies leaves a crash dump, and its requests, sent to another server, are answered there."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import orjson
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.bench.refused import Failed
from mysglang.cli.main import run

PROMPT = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
LONG = {"text": "On", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}, "stream": True, "rid": "open"}


def test_a_dead_server_is_replayed(
    tiny_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--crash-dump-folder", str(tmp_path), "--crash-dump-contents", "--dtype", "float32")
    with WarmServer(*options, "--log-level", "error") as server:
        answer = httpx.post(f"{server.url}/generate", json=PROMPT, timeout=PATIENCE_S).json()
        begun, scheduler = threading.Event(), server.child("mysglang::scheduler_TP0")

        def stream() -> None:
            with httpx.stream("POST", f"{server.url}/generate", json=LONG, timeout=PATIENCE_S) as response:
                for _ in response.iter_lines():
                    begun.set()

        asking = threading.Thread(target=stream)
        asking.start()
        assert begun.wait(PATIENCE_S)
        scheduler.kill()
        assert server.wait() == 3
        asking.join(PATIENCE_S)
        assert "The requests of the last minutes are in" in server.stderr
    [path] = tmp_path.rglob("crash_dump_*.jsonl")
    head, *records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert "scheduler" in head["crash"]
    by_rid = {record["rid"]: record for record in records}
    assert by_rid["open"]["open"] and by_rid["open"]["counts"][0]["prompt_tokens"] > 0
    tokens = [record["answers"][0]["output_ids"] for record in records if not record["open"]]
    assert answer["output_ids"] in tokens

    assert run(["replay", str(path), "--base-url", tiny_server.url, "--speed", "0"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["failed"] == 0 and figures["answered"] == len(records)
    assert figures["equal"] == figures["compared"] >= 1
    assert run(["replay", str(path), "--base-url", tiny_server.url, "--speed", "0", "--only-open"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["answered"] == 1

    # Without contents: the same lengths, and none of the words.
    bare = [{name: value for name, value in record.items() if name not in ("request", "answers")} for record in records]
    path.write_bytes(b"\n".join(map(orjson.dumps, [head, *bare])))
    assert run(["replay", str(path), "--base-url", tiny_server.url, "--speed", "100"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["answered"] == len(records)
    path.write_text("no json\n")
    with pytest.raises(Failed, match="line 1: it is not JSON"):
        run(["replay", str(path), "--base-url", tiny_server.url])
    assert_quiet(tiny_server.url)
