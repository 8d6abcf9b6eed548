"""Which torch `make setup` installs on a machine without a GPU: the CPU build if there is one, else the default."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fixtures.ports import reserved_port

SCRIPTS = Path(__file__).parents[2] / "scripts"

CUDA_BUILD = ['cuda-toolkit[cublas]==13.0.3; platform_system == "Linux"', "triton==3.7.1", "filelock"]
CPU_BUILD = ["filelock", 'nvidia-ml-py; extra == "monitor"', 'cuda-toolkit; platform_system == "Nowhere"']


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("find_torch", SCRIPTS / "find_torch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


find_torch = load()
OWN = find_torch.PYTORCH_CPU
Answers = Callable[[str], bool]


def pip(builds: dict[str, list[str] | None]) -> Callable[[Sequence[str]], dict[str, Any] | None]:
    """A pip that finds these builds, by the index that it is given beside its own ("")."""

    def plan(options: Sequence[str]) -> dict[str, Any] | None:
        assert options[:2] == ("-c", "constraints/cpu.txt")
        needs = builds.get(options[3] if len(options) > 2 else "")
        return None if needs is None else {"install": [{"metadata": {"requires_dist": needs}}]}

    return plan


def always(answer: bool) -> Answers:
    return lambda index: answer


def never_asked(index: str) -> bool:
    raise AssertionError(index)


def test_what_pip_is_configured_to_find_comes_first() -> None:
    assert find_torch.choose(None, pip({"": CPU_BUILD}), never_asked) == ("-c", "constraints/cpu.txt")


def test_an_index_that_the_user_names(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = find_torch.choose("file:///mine", pip({"": CUDA_BUILD, "file:///mine": CPU_BUILD}), never_asked)
    assert chosen == ("-c", "constraints/cpu.txt", "--extra-index-url", "file:///mine")


@pytest.mark.parametrize("usual", [CUDA_BUILD, None])
def test_pytorchs_own_index_if_it_answers(usual: list[str] | None, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = find_torch.choose(None, pip({"": usual, OWN: CPU_BUILD}), always(True))
    assert chosen == ("-c", "constraints/cpu.txt", "--extra-index-url", OWN)
    assert "GB" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("builds", "answers"),
    [
        ({"": CUDA_BUILD, OWN: CPU_BUILD}, False),
        ({"": CUDA_BUILD, OWN: CUDA_BUILD}, True),
        ({"": CUDA_BUILD}, True),
        ({}, False),
    ],
)
def test_else_the_default_build_with_a_line_about_its_size(
    builds: dict[str, list[str] | None], answers: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_torch.choose(None, pip(builds), always(answers)) == ("-c", "constraints/cuda.txt")
    assert [line for line in capsys.readouterr().err.splitlines() if "several GB" in line] == [find_torch.SIZE]


@pytest.fixture
def index() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/whl/torch/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_index_that_answers(index: str) -> None:
    assert find_torch.answers(f"{index}/whl", 30.0)
    assert not find_torch.answers(f"{index}/other", 30.0)


def test_an_index_that_does_not() -> None:
    assert find_torch.PATIENCE_S == 3.0
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert not find_torch.answers(f"http://127.0.0.1:{mute.getsockname()[1]}", 0.2)
    with reserved_port() as silent:
        assert not find_torch.answers(f"http://127.0.0.1:{silent}", 30.0)
    assert not find_torch.answers("no address", 30.0)


@pytest.mark.parametrize(
    ("version", "needs", "kept"),
    [
        ("2.13.0", CPU_BUILD, ("-c", "constraints/cpu.txt")),
        ("2.13.0+cpu", CPU_BUILD, ("-c", "constraints/cpu.txt")),
        ("2.11.0", CUDA_BUILD, ("-c", "constraints/cuda.txt")),
        ("2.10.0", CPU_BUILD, None),
        ("2.13.0", CUDA_BUILD, None),
    ],
)
def test_a_torch_that_is_there_is_kept_if_its_version_is_pinned(
    version: str, needs: list[str], kept: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "cpu.txt").write_text("torch==2.13.0\n")
    (tmp_path / "constraints" / "cuda.txt").write_text("torch==2.11.0\n")
    monkeypatch.chdir(tmp_path)
    there = type("Distribution", (), {"version": version, "requires": needs})
    monkeypatch.setattr(find_torch.metadata, "distribution", lambda name: there)
    assert find_torch.installed() == kept


FAKE_PYTHON = """#!/bin/sh
# An interpreter whose pip notes what it is asked, and whose torch is chosen by the test.
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *scripts/find_torch.py*) echo "$CHOICE" ;;
    "-m pip"*) echo "$@" >> pip.log ;;
    --version) echo Python 3.12 ;;
esac
"""


@pytest.mark.parametrize("constraints", ["constraints/cpu.txt", "constraints/cuda.txt"])
def test_the_script_installs_what_was_chosen(constraints: str, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup", tmp_path / "scripts")
    shutil.copytree(SCRIPTS.parent / "constraints", tmp_path / "constraints")
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    choice = f"-c {constraints} --extra-index-url {OWN}"
    environment = {**os.environ, "PYTHON": str(python), "PLATFORM": "cpu", "EXTRAS": "", "CHOICE": choice}
    done = subprocess.run(["bash", "scripts/setup"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = [line.split("--disable-pip-version-check ")[-1] for line in (tmp_path / "pip.log").read_text().splitlines()]
    assert f"install torch {choice}" in asked
    assert f"install -c {constraints} --no-build-isolation --editable ." in asked


@pytest.mark.skipif(sys.platform != "linux", reason="pip's report is asked of this machine")
def test_pips_own_report_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an index that is an empty folder pip finds nothing, and the choice goes on."""
    monkeypatch.chdir(SCRIPTS.parent)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert find_torch.plan_with_pip(("-c", "constraints/cpu.txt")) is None
