"""The commands and programs of the documentation run, against one server with the embedded model.

Blocks say in their info string if they are not run, and why (`fixtures/doc_blocks.py`). A command that starts a server
is not started: its flags are parsed and checked as at a start. Console blocks belong to test_console_pages.py, and the
page of the frontend language to test_lang.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.doc_blocks import ROOT, SHELL, Block, blocks
from fixtures.server_process import ServerProcess, python_path
from fixtures.warm_start import WarmServer, warm_engines

ELSEWHERE = ("docs/lang.md",)
DOCUMENTED = "127.0.0.1:30000"
LIMIT_S = 500.0

# Placeholders of the pages for directories of the reader.
PLACEHOLDERS = ("MODEL", "SMALL_MODEL", "DIRECTORY_OR_REPOSITORY", "DIRECTORY")

# Stands for `python` in the examples. It checks the flags of a server, and shows a benchmark where the server is.
PYTHON = """#!/bin/sh
case "$*" in
  "-m mysglang.launch_server"*) shift 2; exec "{python}" -c "
import sys
from mysglang.srt.server_args import prepare_server_args
prepare_server_args(sys.argv[1:])" "$@" ;;
  "-m mysglang.bench_serving"*) exec "{python}" "$@" --base-url "{url}" ;;
esac
exec "{python}" "$@"
"""
# Without this, curl succeeds for any answer.
CURL = '#!/bin/sh\nPATH="{path}" exec curl --fail-with-body "$@"\n'


# What an example must not do to the machine that tests it.
FORBIDDEN = ("pip", "pip3", "uv", "apt-get", "apt", "sudo", "docker", "kubectl", "systemctl", "npm", "make")
REFUSAL = '#!/bin/sh\necho "a test runs no {name}: give the block a reason, not-run=..." >&2\nexit 1\n'


def runnable(languages: tuple[str, ...]) -> list[Block]:
    """Blocks to run, each text once."""
    found = [block for block in blocks() if block.language in languages and not block.not_run]
    return list({block.code: block for block in found if block.page not in ELSEWHERE}.values())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("files")
    options = ("--log-level", "warning", "--file-storage-path", str(folder), "--enable-metrics")
    with WarmServer(*options) as process:
        assert process.url
        yield process


@pytest.fixture
def warm() -> Iterator[None]:
    """Engines of programs that run in this process start warm."""
    with warm_engines():
        yield


@pytest.fixture(scope="module")
def room(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder that looks like the top of the repository, and the environment of a shell in it."""
    folder = tmp_path_factory.mktemp("room")
    for name in PLACEHOLDERS:
        (folder / name).mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    commands = folder / ".venv" / "bin"
    commands.mkdir(parents=True)
    path = os.environ["PATH"]
    scripts = {
        "python": PYTHON.format(python=sys.executable, url=server.url),
        "curl": CURL.format(path=path),
        **{name: REFUSAL.format(name=name) for name in FORBIDDEN},
    }
    for name, text in scripts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return folder, os.environ | {"PATH": f"{commands}:{path}", "PYTHONPATH": python_path("python")}


@pytest.mark.parametrize("block", runnable(SHELL), ids=str)
def test_commands(block: Block, server: ServerProcess, room: tuple[Path, dict[str, str]]) -> None:
    folder, environment = room
    code = block.code.replace(DOCUMENTED, server.url.removeprefix("http://"))
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", runnable(("python",)), ids=str)
@pytest.mark.usefixtures("warm")
def test_programs(block: Block, server: ServerProcess) -> None:
    if (needed := block.options.get("needs")) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    run(block.code, str(block), server)


@pytest.mark.parametrize("name", ["openai_chat.py", "openai_tools.py", "offline_engine.py"])
@pytest.mark.usefixtures("warm")
def test_examples(name: str, server: ServerProcess) -> None:
    path = ROOT / "examples" / name
    assert run(path.read_text(encoding="utf-8"), str(path), server)


def run(code: str, name: str, server: ServerProcess) -> str:
    """Output of the program. It runs in this process, because starting Python takes longer than most of them."""
    code = code.replace(DOCUMENTED, server.url.removeprefix("http://"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()
