"""The servers that tests start end with the tests, in whatever way these end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fixtures.processes import running, wait_until_gone
from fixtures.server_process import REPOSITORY, ServerProcess, python_path

CUT_OFF = """
import threading
from fixtures.server_process import ServerProcess
print(ServerProcess(program=("-c", "import threading; threading.Event().wait()")).popen.pid, flush=True)
threading.Event().wait()
"""


def test_tests_that_are_cut_off_leave_no_server() -> None:
    """Tests are ended by a time limit, by hand or by the system, and none of their code runs any more."""
    environment = os.environ | {"PYTHONPATH": python_path("python", "test")}
    with running([sys.executable, "-c", CUT_OFF], stdout=subprocess.PIPE, text=True, env=environment) as tests:
        assert tests.stdout is not None
        server = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    wait_until_gone([server])


def test_packages_that_the_tests_find_are_found_by_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_outside.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = ("-c", "import found_outside, mysglang; print(mysglang.__file__)")
    with ServerProcess(program=program) as server:
        assert server.wait() == 0, server.stderr
        assert server.stdout.startswith(str(REPOSITORY))


def test_a_server_hears_of_the_signals_that_the_tests_ignore() -> None:
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ServerProcess(program=("-c", "import threading; threading.Event().wait()")) as server:
            server.send(signal.SIGHUP)
            assert server.wait() == -signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, was)
