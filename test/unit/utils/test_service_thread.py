"""A thread that its process cannot serve without: its death is heard of, its end is not."""

from __future__ import annotations

import ast
from pathlib import Path
from queue import SimpleQueue

import pytest

import mysglang.srt
from mysglang.srt.utils.service_thread import ServiceThread, on_thread_death

PIECES_OF_WORK = {
    "distributed/joining.py",
    "entrypoints/crash_records.py",
    "layers/attention/stand_in.py",
    "model_loader/read_ahead.py",
}
"""Files whose threads do one piece of work. They tell its outcome whatever it is, or are waited for only so long, or
the work goes on without them: what is not read ahead is read by the copy, and what is not compiled has a stand-in."""


def fail() -> None:
    raise ZeroDivisionError("division by zero")


@pytest.mark.promise(46)
def test_promise_46_a_death_is_heard_of() -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    forget = on_thread_death(heard.put)
    try:
        ServiceThread("loader", fail).join()
        ServiceThread("sleeper", lambda: None).join()
    finally:
        forget()
    assert heard.get_nowait() == "the thread 'loader' died: ZeroDivisionError: division by zero"
    assert heard.empty()


def test_the_one_who_watches_a_thread_hears_of_it_alone() -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    others: SimpleQueue[str] = SimpleQueue()
    forget = on_thread_death(others.put)
    ServiceThread("loader", fail, heard.put).join()
    forget()
    assert "loader" in heard.get_nowait() and others.empty()


@pytest.mark.promise(46)
def test_promise_46_every_thread_is_one() -> None:
    """Code that starts a thread by hand must be listed here with the reason why no caller waits for ever if it dies."""
    root = Path(mysglang.srt.__file__ or "").parent
    found = set()
    for path in root.rglob("*.py"):
        if "Thread" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"):
                found.add(str(path.relative_to(root)))
    assert found == PIECES_OF_WORK
