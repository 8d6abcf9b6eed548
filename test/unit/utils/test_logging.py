"""One line a record: when, who, and the level only where it matters."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from mysglang.srt.utils.logging import configure_logging, timed


@pytest.fixture(autouse=True)
def _restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_format(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "TP0")
    logging.getLogger("mysglang.x").info("hello %d", 1)
    logging.getLogger("mysglang.x").warning("careful")
    logging.getLogger("mysglang.x").debug("unseen")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d TP0\] hello 1", first)
    assert second.endswith("TP0] WARNING: careful")


def test_a_clients_words_make_no_line_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    hostile = "a\r\n[2026-01-01 00:00:00] forged\x1b[31m\x07\x9b2J\u2028\u202e\ttail é 日"
    logging.getLogger("x").info("Receive: regex=%s", hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        logging.getLogger("x").exception("failed")
    written = capsys.readouterr().err
    line, failed, *traceback = written.split("\n")
    assert line.endswith(r"regex=a\r\n[2026-01-01 00:00:00] forged\x1b[31m\x07\x9b2J\u2028\u202e\ttail é 日")
    assert failed.endswith("ERROR: failed") and traceback[0].startswith("Traceback")
    assert not {*"\r\x1b\x07\x9b\u2028\u202e"} & {*written}


def test_main_process_has_no_role(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning")
    logging.getLogger("x").error("bad")
    assert re.fullmatch(r"\[[\d: -]+\] ERROR: bad\n", capsys.readouterr().err)


def test_timed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with timed(logging.getLogger("x"), "The warm-up"):
        assert not caplog.messages
    assert re.fullmatch(r"The warm-up took \d+\.\d s\.", caplog.messages[0])


def test_timed_is_silent_about_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ValueError), timed(logging.getLogger("x"), "weights loaded"):
        raise ValueError
    assert not caplog.messages
