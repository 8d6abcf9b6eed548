"""The servers that tests start end with the tests, in whatever way these end."""

import os
import subprocess
import sys

import psutil

from fixtures.server_process import REPOSITORY, all_gone

CUT_OFF = """
import time
from fixtures.server_process import ServerProcess
print(ServerProcess(program=("-c", "import time; time.sleep(600)")).popen.pid, flush=True)
time.sleep(600)
"""


def test_tests_that_are_cut_off_leave_no_server() -> None:
    """By a limit of time, by hand or by the system: no code of theirs runs any more."""
    paths = os.pathsep.join([str(REPOSITORY / "python"), str(REPOSITORY / "test")])
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, "-c", CUT_OFF], stdout=subprocess.PIPE, text=True, env=environment) as tests:
        assert tests.stdout is not None
        server = psutil.Process(int(tests.stdout.readline()))
        tests.kill()
    assert all_gone([server])
