"""Several fronts and several detokenizers on one port: no client can tell which of them it has met."""

from __future__ import annotations

import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.processes import wait_until_gone
from fixtures.server_process import ServerProcess
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer
from mysglang.srt.entrypoints.front_launch import front_title
from mysglang.srt.utils.exit_codes import ExitCode

OPTIONS = (
    "--log-level",
    "warning",
    "--dtype",
    "float32",
    "--tokenizer-worker-num",
    "2",
    "--detokenizer-worker-num",
    "2",
)
KEY = {"Authorization": "Bearer client"}
ADMIN = {"Authorization": "Bearer admin"}
DYING = (*OPTIONS, "--max-total-tokens", "8192")
"""Servers that end within a test. Their schedulers are toys, which load no torch."""

LONG = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}
TRIES = 200


class Connection:
    """One connection, and which of the server's fronts accepted it."""

    def __init__(self, server: ServerProcess) -> None:
        address = urlsplit(server.url)
        assert address.hostname is not None
        self._http = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE_S)
        self._http.connect()
        own_port = self._http.sock.getsockname()[1]
        self.front = next(
            index
            for index, pid in enumerate((server.popen.pid, server.child(front_title(1)).pid))
            if self.ask("GET", "/health") and _accepted(pid, own_port)
        )

    def ask(self, method: str, path: str, body: object = None, headers: Any = KEY) -> http.client.HTTPResponse:
        """The response; read it before asking again."""
        data = None if body is None else json.dumps(body)
        self._http.request(method, path, data, {"Content-Type": "application/json", **headers})
        response = self._http.getresponse()
        if path == "/health":
            response.read()
        return response

    def json(self, method: str, path: str, body: object = None, headers: Any = KEY) -> Any:
        response = self.ask(method, path, body, headers)
        text = response.read()
        assert response.status == 200, text
        return json.loads(text or b"null")

    def close(self) -> None:
        self._http.close()


def _accepted(pid: int, port: int) -> bool:
    return any(known.raddr and known.raddr.port == port for known in psutil.Process(pid).net_connections("tcp"))


def toy(*options: str, kind: type[ServerProcess] = WarmServer) -> ServerProcess:
    return kind(*DYING, *options, program=PROGRAM, **Faults(step_ms=5).env)


def one_at_each(server: ServerProcess) -> tuple[Connection, Connection]:
    """A connection to each front."""
    found: dict[int, Connection] = {}
    for _ in range(TRIES):
        connection = Connection(server)
        if found.setdefault(connection.front, connection) is not connection:
            connection.close()
        if len(found) == 2:
            return found[0], found[1]
    raise AssertionError(f"{TRIES} connections, and all were accepted by front {[*found]}")


class Stream:
    """A long completion that is being streamed, read in a thread of its own."""

    def __init__(self, connection: Connection, **fields: object) -> None:
        self._response = connection.ask("POST", "/v1/completions", LONG | fields)
        assert self._response.status == 200
        self.begun = threading.Event()
        self.frames: list[Any] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.begun.wait(PATIENCE_S)

    def _read(self) -> None:
        for line in self._response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                self.frames.append(json.loads(line[6:]))
                self.begun.set()

    def end(self) -> Any:
        """The last frame."""
        self._reader.join(PATIENCE_S)
        assert not self._reader.is_alive()
        return self.frames[-1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("files")
    access = (
        "--enable-metrics",
        "--enable-mfu-metrics",
        "--api-key",
        "client",
        "--admin-api-key",
        "admin",
        "--file-storage-path",
        str(folder),
    )
    with WarmServer(*OPTIONS, *access, "--max-running-requests", "8", "--max-queued-requests", "8") as started:
        assert started.url
        yield started


@pytest.fixture
def pair(server: ServerProcess) -> Iterator[tuple[Connection, Connection]]:
    connections = one_at_each(server)
    yield connections
    for connection in connections:
        connection.close()


def test_all_processes_are_there_and_leave_no_sockets(server: ServerProcess) -> None:
    titles = server.children().keys()
    assert {"mysglang::detokenizer", "mysglang::detokenizer_1", "mysglang::tokenizer_worker_1"} <= titles
    assert not server.sockets()


def test_mixed_load(server: ServerProcess, pair: tuple[Connection, Connection]) -> None:
    def work(index: int) -> tuple[int, Any]:
        connection = Connection(server)
        prompt = f"The number {index % 4} is"
        if index % 2:
            answer = connection.json("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})
            text = answer["choices"][0]["text"]
        else:
            params = {"max_new_tokens": 12, "temperature": 0}
            body = {"text": prompt, "sampling_params": params, "stream": True}
            frames = connection.ask("POST", "/generate", body).read().split(b"\n\n")
            text = json.loads(frames[-3].removeprefix(b"data: "))["text"]
        connection.close()
        return index % 4, text

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(32)))
    assert len(set(found)) == 4


def test_an_abort_finds_its_request_at_the_other_front(pair: tuple[Connection, Connection]) -> None:
    for asker, other in (pair, pair[::-1]):
        stream = Stream(asker, rid="to be aborted")
        assert other.ask("POST", "/abort_request", {"rid": "to be aborted"}, ADMIN).read() == b""
        assert stream.end()["choices"][0]["finish_reason"] == "abort"


def test_a_name_that_is_open_at_the_other_front_is_refused(pair: tuple[Connection, Connection]) -> None:
    for asker, other in (pair, pair[::-1]):
        stream = Stream(asker, rid="mine")
        refused = other.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "rid": "mine"})
        error = json.loads(refused.read())["error"]
        assert (refused.status, error["param"]) == (400, "rid") and "in use" in error["message"]
        assert other.ask("POST", "/abort_request", {"rid": "mine"}, ADMIN).read() == b""
        stream.end()


def test_all_are_aborted_at_both(server: ServerProcess, pair: tuple[Connection, Connection]) -> None:
    streams = [Stream(connection) for connection in pair]
    operator = Connection(server)
    assert operator.json("GET", "/server_info")["frontend_state"]["open_requests"] == 2
    operator.ask("POST", "/abort_request", {"abort_all": True}, ADMIN).read()
    assert [stream.end()["choices"][0]["finish_reason"] for stream in streams] == ["abort", "abort"]
    assert operator.json("GET", "/server_info")["frontend_state"]["open_requests"] == 0


def test_the_bound_of_open_requests_is_for_all(server: ServerProcess, pair: tuple[Connection, Connection]) -> None:
    here, there = pair
    operator = Connection(server)
    stream = Stream(here, n=12)
    refused = there.ask("POST", "/v1/completions", {"prompt": "a", "n": 5, "max_tokens": 1})
    assert refused.read() and refused.status == 429
    waiting = threading.Thread(target=there.json, args=("POST", "/v1/completions", LONG | {"n": 4, "stream": False}))
    waiting.start()
    wait_until(lambda: operator.json("GET", "/server_info")["frontend_state"]["open_requests"] >= 16)
    refused = operator.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert refused.read() and refused.status == 429
    operator.ask("POST", "/abort_request", {"abort_all": True}, ADMIN).read()
    assert stream.end()
    waiting.join(PATIENCE_S)
    assert operator.json("POST", "/v1/completions", {"prompt": "a", "n": 16, "max_tokens": 1})


def test_keys_are_asked_for_by_both(pair: tuple[Connection, Connection]) -> None:
    for connection in pair:
        for path in ("/v1/models", "/v1/files", "/server_info"):
            response = connection.ask("GET", path, headers={})
            assert response.read() and response.status == 401
        assert connection.json("GET", "/v1/files")["data"] == []


def test_control_from_either(server: ServerProcess, pair: tuple[Connection, Connection]) -> None:
    for connection in pair:
        assert connection.ask("POST", "/flush_cache", {}, ADMIN).read() == b"Cache flushed.\n"
        assert connection.json("POST", "/pause_generation", {}, ADMIN)["success"]
        assert connection.json("POST", "/continue_generation", {}, ADMIN)["success"]
        assert connection.ask("GET", "/health_generate").read() == b""
    here, there = pair
    here.json("POST", "/configure_logging", {"log_requests": True}, ADMIN)
    wait_until(lambda: bool(there.json("POST", "/configure_logging", {}, ADMIN)["log_requests"]))
    there.json("POST", "/configure_logging", {"log_requests": False}, ADMIN)


def test_either_tells_of_all_processes(server: ServerProcess, pair: tuple[Connection, Connection]) -> None:
    titles = set(server.children())
    for connection, other in (pair, pair[::-1]):
        stream = Stream(other)
        state = connection.json("GET", "/debug/state", headers=ADMIN)
        assert titles <= {process["title"] for process in state["processes"]}
        assert state["held"]["frontend"]["names"] >= 1
        connection.ask("POST", "/abort_request", {"abort_all": True}, ADMIN).read()
        stream.end()
        wait_until(partial(no_names, connection))


def no_names(connection: Connection) -> bool:
    """No request has a name any more."""
    return not connection.json("GET", "/debug/state", headers=ADMIN)["held"]["frontend"]["names"]


def test_both_tell_what_both_have_counted(pair: tuple[Connection, Connection]) -> None:
    def counted(connection: Connection) -> list[float]:
        page = connection.ask("GET", "/metrics", headers={}).read().decode()
        names = ("sglang:num_requests_total{", "sglang:time_to_first_token_seconds_count{")
        return [float(line.split()[-1]) for line in page.splitlines() if line.startswith(names)]

    before = counted(pair[0])
    assert len(before) == 2
    for connection in pair:
        connection.json("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 3})
    assert [counted(connection) for connection in pair] == [[count + 2 for count in before]] * 2


def test_both_tell_of_all_processes_and_open_requests(pair: tuple[Connection, Connection]) -> None:
    pair[0].json("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 3})
    for connection in pair:
        page = connection.ask("GET", "/metrics", headers={}).read().decode()
        found = re.findall(r'sglang:process_cpu_seconds_total\{component="(\w+)".*\} ([\d.e+]+)', page)
        assert {"tokenizer", "scheduler", "detokenizer"} <= {name for name, seconds in found if float(seconds) > 0}
        phases = re.findall(r'sglang:startup_time_seconds\{.*phase="(\w+)"\} ([\d.e+]+)', page)
        times = {name: float(seconds) for name, seconds in phases}
        assert times.keys() == {"load_weight", "kv_cache_allocation", "scheduler_e2e", "e2e"}
        assert 0 < times["load_weight"] < times["scheduler_e2e"] < times["e2e"]
        counts = re.findall(r'sglang:http_requests_(total|active)\{endpoint="/v1/completions".*\} (\d+)', page)
        estimates = re.findall(r"sglang:estimated_(flops|read_bytes|write_bytes)_per_gpu_total\{.*\} ([\d.e+]+)", page)
        assert len(estimates) == 3
        assert int(dict(counts)["total"]) > 0 and int(dict(counts)["active"]) == 0


def test_sessions_and_stored_responses_are_known_to_both(pair: tuple[Connection, Connection]) -> None:
    for here, there in (pair, pair[::-1]):
        session = here.json("POST", "/open_session", {})
        params = {"max_new_tokens": 4, "temperature": 0}
        request = {"text": "One two", "rid": "first", "session_params": {"id": session}, "sampling_params": params}
        first = there.json("POST", "/generate", request)
        again = {"id": session, "rid": "first"}
        second = here.json("POST", "/generate", {"text": " three", "session_params": again, "sampling_params": params})
        assert second["meta_info"]["prompt_tokens"] > first["meta_info"]["prompt_tokens"]
        response = here.json("POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 8})
        assert there.json("GET", f"/v1/responses/{response['id']}") == response
        stream = there.ask("POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 8, "stream": True}).read()
        assert b"event: response.created" in stream and (b"response.completed" in stream or b"incomplete" in stream)
        missing = there.ask("GET", "/v1/responses/none")
        assert json.loads(missing.read())["error"]["code"] == 404


def test_what_is_asked_by_the_path_alone_never_breaks_off(pair: tuple[Connection, Connection]) -> None:
    body = {"model": "default", "input": "Hi", "max_output_tokens": 3, "background": True, "stream": True}
    events = pair[0].ask("POST", "/v1/responses", body).read().decode()
    name = next(word for word in events.split('"') if word.startswith("resp_"))
    for path in (f"/v1/responses/{name}", f"/v1/responses/{name}?stream=true"):
        for connection in pair:
            for _ in range(20):
                answer = connection.ask("GET", path)
                answer.read()
                assert answer.status == 200
    assert pair[1].ask("GET", f"/v1/responses/{name}?stream=true").read().decode() == events


def test_files_are_one_store(pair: tuple[Connection, Connection]) -> None:
    for here, there in (pair, pair[::-1]):
        form = (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            + b"a" * 300_000
            + b"\r\n--x--\r\n"
        )
        headers = {**KEY, "Content-Type": "multipart/form-data; boundary=x"}
        here._http.request("POST", "/v1/files", form, headers)
        kept = json.loads(here._http.getresponse().read())
        assert there.ask("GET", f"/v1/files/{kept['id']}/content").read() == b"a" * 300_000
        assert there.json("DELETE", f"/v1/files/{kept['id']}")["deleted"]


def test_who_leaves_a_relayed_stream_ends_its_request(
    server: ServerProcess, pair: tuple[Connection, Connection]
) -> None:
    body = {"input": "Tell", "max_output_tokens": 1500, "stream": True}
    leaving = pair[1].ask("POST", "/v1/responses", body)
    assert leaving.readline()
    assert pair[0].json("GET", "/server_info")["frontend_state"]["open_requests"] == 1
    pair[1]._http.close()
    leaving.close()
    wait_until(lambda: pair[0].json("GET", "/server_info")["frontend_state"]["open_requests"] == 0)


def test_the_main_process_is_told_to_change_while_the_other_starts() -> None:
    with ServerProcess(*OPTIONS, "--admin-api-key", "admin") as server:
        told: list[int] = []

        def told_until_ready() -> bool:
            assert server.popen.poll() is None, server.stderr
            for connection in psutil.Process(server.popen.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    url = f"http://127.0.0.1:{connection.laddr.port}/configure_logging"
                    switch = {"log_requests": True}
                    told.append(httpx.post(url, json=switch, headers=ADMIN, timeout=PATIENCE_S).status_code)
            return "answers on" in server.stdout

        wait_until(told_until_ready, lambda: server.stderr)
        assert 200 in told
        for front in one_at_each(server):
            assert front.json("POST", "/v1/completions", {"prompt": "One", "max_tokens": 2})["choices"]
            front.close()


def test_draining_waits_for_both() -> None:
    with toy("--drain-timeout", "60") as server:
        streams = [Stream(connection, max_tokens=200) for connection in one_at_each(server)]
        server.send(signal.SIGTERM)
        assert [stream.end()["choices"][0]["finish_reason"] for stream in streams] == ["length", "length"]
        assert server.wait() == ExitCode.DONE
        assert not server.sockets()


def test_what_does_not_end_in_time_is_cut_off_at_both() -> None:
    with toy("--drain-timeout", "0.3") as server:
        streams = [Stream(connection) for connection in one_at_each(server)]
        server.send(signal.SIGTERM)
        assert [stream.end()["error"]["code"] for stream in streams] == ["shutting_down", "shutting_down"]
        assert server.wait() == ExitCode.CUT_OFF


@pytest.mark.parametrize("title", ["mysglang::tokenizer_worker_1", "mysglang::detokenizer_1"])
def test_one_that_dies_ends_the_server(title: str) -> None:
    with toy() as server:
        here, there = (Stream(connection) for connection in one_at_each(server))
        children = list(server.children().values())
        server.child(title).kill()
        told = [here] if "worker" in title else [here, there]
        assert {stream.end()["error"]["code"] for stream in told} == {"engine_dead"}
        assert server.wait() == ExitCode.WORKER_DIED
        assert f"{title} was ended by SIGKILL" in server.stderr
        wait_until_gone(children)
        assert not server.sockets()


def test_with_the_main_process_all_are_gone() -> None:
    with toy(kind=ServerProcess) as server:
        assert server.url
        children = list(server.children().values())
        server.popen.kill()
        server.wait()
        wait_until_gone(children)
