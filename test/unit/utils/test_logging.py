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


def test_main_process_has_no_role(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning")
    logging.getLogger("x").error("bad")
    assert re.fullmatch(r"\[[\d: -]+\] ERROR: bad\n", capsys.readouterr().err)


def test_timed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with timed(logging.getLogger("x"), "weights loaded"):
        assert not caplog.messages
    assert re.fullmatch(r"weights loaded in \d+\.\d s", caplog.messages[0])


def test_timed_is_silent_about_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ValueError), timed(logging.getLogger("x"), "weights loaded"):
        raise ValueError
    assert not caplog.messages
