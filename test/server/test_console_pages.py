"""The pages about the commands: every command in a console block is run, and prints what its page shows.

All run against one server, which answers where MYSGLANG_BASE_URL says, and whose admin key is in
MYSGLANG_ADMIN_API_KEY. A command that serves is started, waited for, and ended.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import pytest

from fixtures.console_pages import Example, examples
from fixtures.patience import wait_until
from fixtures.processes import end, start
from fixtures.server_process import REPOSITORY, ServerProcess, python_path
from fixtures.warm_start import WarmServer, warm_process

sys.path.insert(0, str(REPOSITORY / "benchmark"))

from shapes import SHAPES

PAGES = ("command_line.md", "profiling.md", "evaluation.md")
EXAMPLES = [example for page in PAGES for example in examples(REPOSITORY / "docs" / page)]
LIMIT_S = 500.0
SHELL_SIGNS = set("|<>&;{")
"""Signs of a command that a shell must understand."""
KEY = "key-of-these-tests"

_PORT = re.compile(r"\b3000[12]\b")
"""Port of the servers on the page."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with WarmServer("--log-level", "warning", "--dtype", "float32", "--admin-api-key", KEY) as server:
        yield server


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder to run in, with the files that the pages name, and the environment."""
    folder = tmp_path_factory.mktemp("room")
    commands = folder / "bin"
    commands.mkdir()
    script = commands / "mysglang"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mysglang "$@"\n')
    script.chmod(0o755)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(SHAPES["llama-8b"]))
    counts = {"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 2, "finished": "stop"}
    request = {"rid": "a", "started": 7.0, "open": False, "prompts": [{"characters": 9}], "sampling_params": {}}
    records = [{"crash": "x"}, {**request, "counts": [counts]}, {**request, "started": 7.1, "counts": [counts]}]
    (folder / "crash_dump.jsonl").write_text("\n".join(map(json.dumps, records)))
    problem = {"question": "What is 2 + 2?", "answer": "It is four.\n#### 4"}
    (folder / "gsm8k.jsonl").write_text("\n".join([json.dumps(problem)] * 4))
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    function = {"prompt": "def add(a, b):\n", "entry_point": "add", "test": test}
    (folder / "humaneval.jsonl").write_text(json.dumps(function))
    page = (REPOSITORY / "docs" / "command_line.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"```yaml title=\"server.yaml\"\n(.*?)```", page, re.DOTALL)
    (folder / "server.yaml").write_text(_PORT.sub("0", config))
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": python_path("python"),
        "MYSGLANG_BASE_URL": server.url,
        "MYSGLANG_ADMIN_API_KEY": KEY,
        "COLUMNS": "120",
    }
    yield folder, environment


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example(example: Example, room: tuple[Path, dict[str, str]]) -> None:
    folder, environment = room
    run = run_server if example.command.startswith("mysglang serve") else run_to_its_end
    printed = run(_PORT.sub("0", example.command), folder, environment)
    shown = Example(example.page, example.command, re.sub(r":3000[12]\b", ":…", example.output))
    assert shown.matches(printed), printed


@contextmanager
def started(command: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[Any, Path]]:
    """A process that runs the command, and the file that it prints to. It is ended in the end.

    `mysglang` itself runs in a process that has loaded its modules before it starts. A shell runs all else.
    """
    path = folder / "printed"
    with path.open("wb") as out:
        if sys.platform == "linux" and not SHELL_SIGNS & set(command):
            _, *arguments = shlex.split(Template(command).substitute(environment))
            env = environment | {"PWD": str(folder)}
            process: Any = warm_process("mysglang.__main__", arguments, env, out.fileno(), out.fileno())
        else:
            shell = ["bash", "-o", "pipefail", "-c", command]
            process = start(shell, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process, path
    finally:
        end(process)


def run_to_its_end(command: str, folder: Path, environment: dict[str, str]) -> str:
    with started(command, folder, environment) as (process, path):
        assert process.wait(LIMIT_S) == 0, path.read_text()
        return path.read_text()


def run_server(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Up to the line that says where it answers."""
    with started(command, folder, environment) as (process, path):

        def ready() -> re.Match[str] | None:
            return re.search(r"(?s)^.* answers on \S+\n", path.read_text())

        wait_until(lambda: process.poll() is not None or ready(), path.read_text)
        found = ready()
        assert found is not None, path.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0, path.read_text()
    return found[0]
