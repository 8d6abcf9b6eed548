"""A server whose log is a full pipe without a reader: it starts, answers, writes its stacks and ends as any other."""

import re
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from fixtures.patience import PATIENCE_S
from fixtures.processes import wait_until_gone
from fixtures.server_process import ServerProcess
from fixtures.toy_server import PROGRAM, Faults, reference
from fixtures.unread_pipe import UnreadPipe
from mysglang.srt.utils.exit_codes import ExitCode

SCHEDULER, DETOKENIZER = "mysglang::scheduler_TP0", "mysglang::detokenizer"
PROMPT = list(range(100, 140))


@pytest.fixture
def unread() -> Iterator[UnreadPipe]:
    pipe = UnreadPipe()
    yield pipe
    pipe.close()


def ask(url: str) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    answer = httpx.post(f"{url}/generate", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output_ids"] == reference(PROMPT, 8)


@pytest.mark.promise(45)
def test_a_log_that_nobody_reads(unread: UnreadPipe) -> None:
    options = ("--log-level", "debug", "--log-level-http", "debug", "--log-requests", "--enable-metrics")
    with ServerProcess(*options, program=PROGRAM, stderr=unread.writing, **Faults().env) as server:
        url = server.url
        # Each line of the access log is a part of what fills the megabyte that may wait.
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            for _ in range(100):
                assert client.get("/health", params={"why": "x" * 16_000}).status_code == 200
        # The stacks go straight to the descriptor, which must not block either.
        for title in (SCHEDULER, DETOKENIZER):
            for _ in range(20):
                server.child(title).send_signal(signal.SIGUSR1)
        for _ in range(5):
            ask(url)
        found = re.search(r"sglang:log_lines_dropped\{.*\} ([\d.e+]+)", httpx.get(f"{url}/metrics").text)
        assert found is not None and float(found[1]) > 0
        started = re.compile(r"^\[[\d: -]+ TP0\] .*Setting up the scheduler took", re.MULTILINE)
        log = unread.read(lambda said: started.search(said) and "GET /health?why=xxx" in said)
        ask(url)
        dropped = r"\] WARNING: (\d+) lines of this log were dropped, because its reader did not take them\.\n"
        lost = float(found[1])
        unread.read(lambda said: sum(map(int, re.findall(dropped, log + said))) >= lost)
        # The last words have no reader, and the end does not wait for one.
        unread.fill()
        children = [psutil.Process(child.pid) for child in server.children().values()]
        server.child(SCHEDULER).kill()
        assert server.wait() == ExitCode.WORKER_DIED
        wait_until_gone(children)
