"""A test that is cut off leaves no process behind: its server, what that started, and its browser end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.processes import those_left, wait_until_gone
from fixtures.server_process import REPOSITORY, python_path

BEGINNING = """
import asyncio, os, signal, subprocess, sys, threading
from pathlib import Path
import psutil
from fixtures.chromium import chromium
from fixtures.patience import wait_until
from fixtures.processes import running
from fixtures.server_process import ServerProcess

WAITS = "import threading; threading.Event().wait()"
FAMILY = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITS!r}], start_new_session=True); {WAITS}"

def family():
    server = ServerProcess(program=("-c", FAMILY))
    wait_until(lambda: len(psutil.Process(server.popen.pid).children()) == 1)
    return server

def tell():  # all that runs by now
    Path("pids").write_text(" ".join(str(process.pid) for process in psutil.Process().children(recursive=True)))

def hang():  # and pytest-timeout says that the limit is over, as it always does
    os.kill(os.getpid(), signal.SIGALRM)
    threading.Event().wait()
"""

HANGING = {
    "a server and its child": """
def test():
    with family():
        tell()
        hang()
""",
    "a process that would be waited for": """
def test():
    with running(["sleep", "600"]) as process:
        tell()
        hang()
        process.wait()
""",
    "a task": """
async def test():
    async def serve():
        with family():
            tell()
            os.kill(os.getpid(), signal.SIGALRM)
            await asyncio.Event().wait()
    await asyncio.create_task(serve())
""",
    "a browser": """
def test():
    with chromium() as browser:
        browser.new_page()
        tell()
        hang()
""",
}


def run_pytest(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest's output for a file with this text, by the settings of this repository."""
    (folder / "test_hanging.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml")]
    return subprocess.run(
        [*command, "--rootdir", str(folder), *options, "test_hanging.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": python_path("python", "test")},
    )


def assert_nothing_is_left(folder: Path) -> None:
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert pids
    wait_until_gone(those_left(pids))


@pytest.mark.parametrize("name", HANGING)
def test_a_limit_that_is_over_leaves_nothing(name: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, BEGINNING + HANGING[name])
    if "1 skipped" in done.stdout:
        pytest.skip("there is no browser")
    assert done.returncode == 1 and "Timeout" in done.stdout, done.stdout + done.stderr
    assert_nothing_is_left(tmp_path)


def test_tests_that_are_killed_leave_nothing(tmp_path: Path) -> None:
    """No code of theirs runs any more: the kernel ends the server, and the browser notices by itself."""
    text = """
def test():
    with ServerProcess(program=("-c", WAITS)), chromium() as browser:
        browser.new_page()
        tell()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_pytest(tmp_path, BEGINNING + text)
    if "1 skipped" in done.stdout:
        pytest.skip("there is no browser")
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert_nothing_is_left(tmp_path)


def test_a_test_that_hears_no_signal_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """Python serves no signal while other code runs, so the usual limit would never end it."""
    text = """
# The clock of the first test does not run yet.
SERVER = ServerProcess(program=("-c", WAITS))
tell()

def test():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    threading.Event().wait()
"""
    done = run_pytest(tmp_path, BEGINNING + text, "-o", "faulthandler_timeout=0.1")
    assert done.returncode == 1 and "Timeout (" in done.stderr, done.stdout + done.stderr
    assert_nothing_is_left(tmp_path)


def test_the_last_limit_is_in_force(pytestconfig: pytest.Config) -> None:
    """It leaves the other limits their time: only `make fuzz` has tests that take longer, and turns it off."""
    assert float(pytestconfig.getini("faulthandler_timeout")) > 1800 > float(pytestconfig.getini("timeout"))
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
