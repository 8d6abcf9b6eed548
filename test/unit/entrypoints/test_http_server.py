"""A server's message when it is ready, and its handling of signals."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from fixtures.patience import PATIENCE_S, settled
from mysglang.srt.configs.architectures import FAMILIES, Task
from mysglang.srt.entrypoints import http_server
from mysglang.srt.entrypoints.http_server import StopSignals
from mysglang.srt.entrypoints.server_life import ready_text
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware

URL = "http://127.0.0.1:1"


def command(tmp_path: Path, *, task: Task = "generate", can_chat: bool = True, **options: object) -> list[str]:
    args = ServerArgs.from_kwargs(Hardware(), model_path=str(tmp_path), served_model_name="llama", **options)
    text = ready_text(args, URL, task=task, can_chat=can_chat)
    assert text.strip().startswith(f"llama answers on {URL}")
    return shlex.split(text[text.index("curl") :].replace("\\\n", ""))


def test_ready_text_is_a_command(tmp_path: Path) -> None:
    words = command(tmp_path)
    assert words[2] == f"{URL}/v1/chat/completions"
    assert orjson.loads(words[-1])["model"] == "default"
    assert "Authorization" not in " ".join(words)


def test_ready_text_keeps_the_key_to_itself(tmp_path: Path) -> None:
    words = command(tmp_path, api_key="s3cret")
    assert "Authorization: Bearer $API_KEY" in words
    assert "s3cret" not in " ".join(words)


def test_ready_text_without_a_tokenizer(tmp_path: Path) -> None:
    words = command(tmp_path, skip_tokenizer_init=True)
    assert words[2] == f"{URL}/generate"
    assert "input_ids" in orjson.loads(words[-1])


@pytest.mark.parametrize(
    ("task", "can_chat", "skip", "path", "field"),
    [
        ("generate", False, False, "/v1/completions", "prompt"),
        ("generate", False, True, "/generate", "input_ids"),
        ("embed", False, False, "/v1/embeddings", "input"),
        ("embed", False, True, "/v1/embeddings", "input"),
        ("classify", True, False, "/classify", "text"),
        ("classify", False, True, "/classify", "input_ids"),
    ],
)
def test_ready_text_asks_what_the_model_can_answer(
    tmp_path: Path, task: Task, can_chat: bool, skip: bool, path: str, field: str
) -> None:
    words = command(tmp_path, task=task, can_chat=can_chat, skip_tokenizer_init=skip)
    assert words[2] == f"{URL}{path}"
    assert field in orjson.loads(words[-1])


async def test_the_first_signal_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, codes = asyncio.Event(), []
    monkeypatch.setattr(http_server, "SAME_SIGNAL_S", 600)
    monkeypatch.setattr(os, "_exit", codes.append)
    stop = StopSignals()
    stop.kill = killed.set
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stop.requested.wait(), PATIENCE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    await settled()
    assert not killed.is_set(), "a wrapper delivers the same signal twice"
    monkeypatch.setattr(http_server, "SAME_SIGNAL_S", 0)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(killed.wait(), PATIENCE_S)
    assert codes == [5]


@pytest.fixture
def hangup() -> Iterator[None]:
    """Whatever becomes of SIGHUP is undone."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def test_a_hangup_asks_too(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop = StopSignals()
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.wait_for(stop.requested.wait(), PATIENCE_S)


async def test_a_hangup_that_is_ignored_stays_so(hangup: None) -> None:
    """nohup ignores it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    StopSignals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_an_interrupt_counts_in_a_job_in_the_background() -> None:
    """There shells start programs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = StopSignals()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(stop.requested.wait(), PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_heavy_is_loaded_before_the_children_are_started() -> None:
    """The children load torch in this time: everything before them is added to the start."""
    program = "import sys, mysglang.launch_server; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert "mysglang.srt.entrypoints.launcher" in loaded
    assert not loaded & {
        "fastapi",
        "importlib.metadata",
        "jinja2",
        "numpy",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "statistics",
        "uvicorn",
        "zmq",
    }
    assert not [name for name in loaded if name.startswith(f"{FAMILIES}.")]
