"""`mysglang chat` in a terminal: what is shown, what Ctrl-C does, what the commands do. The engine is a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fixtures.scripted_engine import Step
from fixtures.scripted_server import scripted_server
from fixtures.server_process import python_path
from fixtures.terminal import CTRL_C, CTRL_D, Terminal
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.messages.outputs import Stop
from mysglang.srt.messages.requests import TokenizedGenerateReqInput

THINKS = [Step("<think>\nhm"), Step("\n</think>\n\n"), Step("Four."), Step("", [2], Stop(2))]
ENDLESS = [Step("On and on")]
STEERS = [Step("a\x1b[2Jb"), Step("", [2], Stop(2))]


class Answers:
    """A script that gives the answers that a test lays out, one for each request."""

    def __init__(self) -> None:
        self.next: list[list[Step]] = []

    def __call__(self, _request: TokenizedGenerateReqInput) -> Iterable[Step]:
        return self.next.pop(0)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


@pytest.fixture(scope="module")
def url(answers: Answers) -> Iterator[str]:
    with scripted_server(AppOptions(reasoning_parser="qwen3"), answers) as found:
        yield found


def chat(url: str, folder: Path, *options: str, **environment: str) -> Terminal:
    command = [sys.executable, "-m", "mysglang", "chat", "--base-url", url, *options]
    known = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return Terminal(command, known | {"PYTHONPATH": python_path("python"), **environment}, str(folder))


def leave(terminal: Terminal) -> None:
    """Ctrl-D at the prompt. What a terminal takes before it, while it edits lines itself, readline never sees."""
    terminal.expect("you> ")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0


def saved(terminal: Terminal, folder: Path) -> list[dict[str, object]]:
    terminal.expect("you> ")
    terminal.type("/save talk.json\r")
    terminal.expect("messages are in talk.json")
    messages: list[dict[str, object]] = json.loads((folder / "talk.json").read_text())
    return messages


def test_thoughts_are_dimmed_and_the_history_is_kept(url: str, answers: Answers, tmp_path: Path) -> None:
    answers.next = [THINKS, THINKS]
    with chat(url, tmp_path, "--system", "Be brief.", "--stats") as terminal:
        terminal.expect("you> ")
        terminal.type("What is 2 + 2?\r")
        terminal.expect("\x1b[2m")
        assert "hm" in terminal.expect("Four.")
        terminal.expect("tokens/s")
        terminal.expect("you> ")
        terminal.type("And again?\r")
        terminal.expect("Four.")
        roles = [message["role"] for message in saved(terminal, tmp_path)]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
        leave(terminal)


def test_ctrl_c_stops_the_answer_and_not_the_program(url: str, answers: Answers, tmp_path: Path) -> None:
    answers.next = [ENDLESS, THINKS]
    with chat(url, tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.type("talk\r")
        terminal.expect("On and on")
        terminal.type(CTRL_C)
        terminal.expect("[stopped]")
        assert saved(terminal, tmp_path)[-1] == {"role": "assistant", "content": "On and on"}
        terminal.expect("you> ")
        terminal.type(CTRL_C)
        terminal.expect("/quit or Ctrl-D ends.")
        terminal.expect("you> ")
        terminal.type("again\r")
        terminal.expect("Four.")
        terminal.expect("you> ")
        terminal.type("/quit\r")
        assert terminal.wait() == 0


def test_commands(url: str, answers: Answers, tmp_path: Path) -> None:
    answers.next = [THINKS]
    with chat(url, tmp_path, NO_COLOR="1") as terminal:
        for typed, shown in (
            ("/help", "/system    TEXT"),
            ("/sytem x", "/sytem is not a command; did you mean /system?"),
            ("/save", "/save needs a file"),
            ("/save no/such/folder", "cannot be written: No such file or directory"),
            ("/system Be kind.", "The system message is set."),
            ("//slash", "Four."),
        ):
            terminal.expect("you> ")
            terminal.type(f"{typed}\r")
            terminal.expect(shown)
        assert saved(terminal, tmp_path)[:2] == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "/slash"},
        ]
        terminal.expect("you> ")
        terminal.type("/reset\r")
        terminal.expect("empty")
        assert saved(terminal, tmp_path) == [{"role": "system", "content": "Be kind."}]
    assert "\x1b[2m" not in terminal.screen and "\x1b[1m" not in terminal.screen


@pytest.mark.parametrize(
    ("lines", "status"),
    [("hello\n", 0), ("much " * 300 + "\nhello\n", 1)],
)
def test_a_script_learns_of_errors(url: str, answers: Answers, tmp_path: Path, lines: str, status: int) -> None:
    """The lines after an error are still answered."""
    answers.next = [THINKS]
    command = [sys.executable, "-m", "mysglang", "chat", "--base-url", url]
    environment = {**os.environ, "PYTHONPATH": python_path("python")}
    done = subprocess.run(command, input=lines, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "Four." in done.stdout, "error: " in done.stdout) == (status, True, bool(status))


def test_an_error_is_shown_and_the_talk_goes_on(url: str, answers: Answers, tmp_path: Path) -> None:
    answers.next = [STEERS]
    with chat(url, tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.type("much " * 300 + "\r")  # more than the context of the scripted engine
        terminal.expect("error: the server answered 400: ")
        assert saved(terminal, tmp_path) == []
        terminal.expect("you> ")
        terminal.type("steer\r")
        terminal.expect("a[2Jb")  # the escape character itself is not passed on
