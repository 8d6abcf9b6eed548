"""The package's own face: a version that is the distribution's, names that load when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mysglang
from fixtures.patience import PATIENCE_S
from mysglang import check_env
from mysglang.bench.refused import Refused
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.version import __version__

REPOSITORY = Path(__file__).parents[2]


def test_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__ == mysglang.__version__


def test_names_are_found_on_first_use() -> None:
    assert mysglang.ServerArgs is ServerArgs
    assert set(mysglang.__all__) == set(dir(mysglang))
    with pytest.raises(AttributeError, match="Motor"):
        mysglang.Motor  # noqa: B018


def test_importing_it_loads_nothing() -> None:
    program = "import sys, mysglang; print(sorted(name for name in sys.modules if name.startswith('mysglang')))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY / "python", timeout=PATIENCE_S
    )
    assert ast.literal_eval(done.stdout) == [
        "mysglang",
        "mysglang.srt",
        "mysglang.srt.utils",
        "mysglang.srt.utils.version",
    ]


def test_check_env_takes_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match="--port is not an option"):
        check_env.run(["--port", "1"])
    assert not capsys.readouterr().out


def test_check_env_tells_versions_and_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MYSGLANG_REFERENCE_OPS", "1")
    check_env.main()
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert told["mysglang"].startswith(__version__)
    assert told["MYSGLANG_REFERENCE_OPS"] == "1"
    assert told["torch"] != "not installed"
    assert "openai" in told
