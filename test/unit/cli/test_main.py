"""The command as a process: overview, exit status, what is imported, and what is said of mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.patience import PATIENCE_S
from fixtures.server_process import REPOSITORY, python_path
from mysglang.bench.refused import Failed, Refused
from mysglang.cli.main import COMMANDS, SECTIONS, run
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.version import __version__

HEAVY = ("torch", "transformers", "fastapi", "uvicorn", "yaml")


def mysglang(*words: str, program: str | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    command = ["-c", program] if program else ["-m", "mysglang"]
    return subprocess.run(
        [sys.executable, *command, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": python_path("python")},
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from mysglang.cli.main import run; status = run(['--help'])\n"
        f"print(status, [name for name in {HEAVY} if name in sys.modules])"
    )
    done = mysglang(program=program)
    assert done.stdout.endswith("0 []\n")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS if name != "bench")
    assert "\x1b" not in done.stdout


def test_every_command_has_a_place_in_the_overview() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


def test_no_command_is_a_wrong_command_line() -> None:
    done = mysglang()
    assert done.returncode == 2 and "usage: mysglang COMMAND" in done.stdout


@pytest.mark.parametrize(("words", "start"), [(["help"], "mysglang "), (["help", "bench"], "usage: mysglang bench ")])
def test_help_is_a_command_too(words: list[str], start: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert capsys.readouterr().out.startswith(start)


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert capsys.readouterr().out == f"mysglang {__version__}\n"


NO_SERVER = "--base-url http://127.0.0.1:9"

MISTAKES: dict[str, str] = {
    "srve": "'srve' is not a command of mysglang; did you mean mysglang serve?",
    "bench servng": "'servng' is not a command of mysglang bench; did you mean mysglang bench serving?",
    "--port 8000": "--port stands before a command; the first word is one of: serve, chat, ",
    "serve --prot 8000": "--prot is not an option; did you mean --port",
    "serve one --model-path two": "the model is named twice: one, and --model-path two",
    "serve --config missing.yaml": "--config missing.yaml cannot be read: No such file or directory",
    f"chat {NO_SERVER} --temprature 0": "--temprature is not an option; did you mean --temperature?",
    "chat --base-url http://a --model-path tiny": "--base-url names a running server and --model-path starts one: "
    "give one of the two.",
    "generate --model-path tiny --prot 1 hello": "--prot is not an option; did you mean --port",
    "generate --raw --system x hello": "--system needs the model's chat template, which --raw leaves out.",
    "generate --base-url localhost hello": "--base-url 'localhost' is not an address such as http://127.0.0.1:30000.",
    "generate --base-url http://[::1 hello": "--base-url 'http://[::1' is not an address such as http://127.0.0.1:30000.",
    "bench serving --base-url http://a:65536": "'http://a:65536': the port is not a number below 65536.",
    "models tiny --memory inf": "argument --memory: inf is not a finite number above 0",
    f"bench serving {NO_SERVER} --seed -1": "argument --seed: -1 is less than 0",
    "bench compare --base-urls http://a http://b --seed -1": "argument --seed: -1 is less than 0",
    "bench one-batch --seed -1": "argument --seed: -1 is less than 0",
    f"replay missing.jsonl {NO_SERVER} --seed -1": "argument --seed: -1 is less than 0",
    "models --batch-size 0": "argument --batch-size: 0 is less than 1",
    "completion tcsh": "argument shell: invalid choice: 'tcsh' (choose from ",
    "bench compare --base-urls http://a": "--base-urls needs two servers or more.",
    "bench compare --base-urls http://a http://b --port 1": "--port speaks of one server or one run",
    "bench compare --base-urls http://a http://a": "two servers have the same name; give each its own with --names.",
    "profile --mem": "--mem is an option of SGLang's tool that this version of mysglang does not support.",
    "bench startup -- sleep 1": "the command needs {port} where its port stands, or --base-url says",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_named(line: str) -> None:
    with pytest.raises((Refused, ConfigError)) as caught:
        run(line.split())
    assert MISTAKES[line] in caught.value.problems[0]
    assert not isinstance(caught.value, Failed)


FAILURES: dict[str, str] = {
    f"chat {NO_SERVER}": "no server answers at http://127.0.0.1:9 (Connection refused). Start one",
    f"generate {NO_SERVER} hello": "no server answers at http://127.0.0.1:9 (Connection refused).",
    "models /no/such/model": "model path '/no/such/model' does not exist; give a directory, or a Hugging Face id",
    "bench startup -- /no/such/program {port}": "/no/such/program cannot be started: No such file or directory.",
    "bench startup -- false {port}": "the command ended with exit status 1 before its server was ready.",
    f"replay missing.jsonl {NO_SERVER}": "missing.jsonl cannot be read: No such file or directory.",
    f"chat {NO_SERVER} --tools missing.json": "--tools missing.json cannot be read: No such file or directory.",
}


@pytest.mark.parametrize("line", FAILURES)
def test_a_failure_says_what_to_do(line: str) -> None:
    with pytest.raises(Failed) as caught:
        run(line.split())
    assert FAILURES[line] in caught.value.problems[0]


def test_statuses_of_the_process() -> None:
    wrong, failed = mysglang("srve"), mysglang("models", "/no/such/model")
    assert (wrong.returncode, failed.returncode) == (2, 1)
    assert wrong.stderr == f"error: {MISTAKES['srve']}\n" and wrong.stdout == ""


def test_a_prompt_that_is_not_there() -> None:
    done = mysglang("generate")
    assert (done.returncode, done.stderr) == (2, "error: the prompt is empty.\n")


def test_a_reader_that_leaves_makes_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mysglang", "models", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": python_path("python")},
            timeout=PATIENCE_S,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def complete(line: str, tmp_path: Path) -> set[str]:
    """Completions that a shell offers for `line`."""
    offered = tmp_path / "offered"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(offered),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPATH": python_path("python"),
    }
    subprocess.run([sys.executable, "-m", "mysglang"], env=os.environ | environment, timeout=PATIENCE_S, check=True)
    return set(offered.read_text().split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mysglang ch", {"chat", "check-env"}),
        ("mysglang bench co", {"compare"}),
        ("mysglang chat --base", {"--base-url"}),
        ("mysglang serve --schedule-policy l", {"lpm", "lof"}),
        ("mysglang bench one-batch --input", {"--input-len"}),
        ("mysglang completion f", {"fish"}),
    ],
)
def test_completion(line: str, offered: set[str], tmp_path: Path) -> None:
    assert complete(line, tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "mysglang" in script and "_ARGCOMPLETE" in script


def test_bash_takes_the_script() -> None:
    script = mysglang("completion", "bash").stdout
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p mysglang"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0 and "_python_argcomplete" in done.stdout
