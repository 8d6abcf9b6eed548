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
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

COLD = """
import threading
from fixtures.server_process import ServerProcess
print(ServerProcess(program=("-c", "import threading; threading.Event().wait()")).popen.pid, flush=True)
threading.Event().wait()
"""
WARM = """
import threading
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer
server = WarmServer("--log-level", "warning", program=PROGRAM, **Faults().env)
assert server.url
print(server.popen.pid, *(child.pid for child in server.children().values()), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("tests", [COLD, WARM], ids=["cold", "warm"])
def test_tests_that_are_cut_off_leave_no_server(tests: str) -> None:
    """Tests are ended by a time limit, by hand or by the system, and none of their code runs any more."""
    environment = os.environ | {"PYTHONPATH": python_path("python", "test")}
    with running([sys.executable, "-c", tests], stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in started.stdout.readline().split()]
        started.kill()
    assert processes
    wait_until_gone(processes)


def test_a_warm_server_has_children_of_its_own_and_ends_as_another() -> None:
    with WarmServer("--log-level", "warning", program=PROGRAM, **Faults().env) as server:
        assert server.url
        children = server.children()
        for title in ("mysglang::scheduler_TP0", "mysglang::detokenizer"):
            assert children[title].ppid() == server.popen.pid
        server.send(signal.SIGTERM)
        assert server.wait() == 0, server.stderr
        wait_until_gone(list(children.values()))
        assert server.sockets() == []


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
