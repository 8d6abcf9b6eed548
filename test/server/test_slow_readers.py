"""Promise 16: a client that does not read holds little memory, disturbs no other, and is cut off."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from fixtures.certificate import make_certificate
from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S, wait_until
from fixtures.server_process import ServerProcess
from fixtures.side_by_side import assert_hardly_longer, percentile
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

WRITE_TIMEOUT_S = 1.0
PROMPT_IDS = list(range(100, 130))
PARAMS = {"max_new_tokens": 1900, "ignore_eos": True, "temperature": 0.0}
# With log-probabilities of many tokens, whose frames repeat all that came before, an answer is far larger than what
# the system holds for a client.
LARGE = {"input_ids": PROMPT_IDS, "sampling_params": PARAMS, "stream": True, "return_logprob": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with WarmServer("--log-level", "warning", "--write-timeout", f"{WRITE_TIMEOUT_S}") as process:
        yield process


def ask_and_never_read(url: str, body: object, certificate: str | None = None) -> socket.socket:
    """An open connection whose answer is not read; over TLS if there is a certificate to trust."""
    address = httpx.URL(url)
    client = socket.socket()
    # The least that the system grants.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.connect((address.host, address.port))
    if certificate is not None:
        client = ssl.create_default_context(cafile=certificate).wrap_socket(client, server_hostname=address.host)
    content = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return client


def frontend_state(url: str, certificate: str | None = None) -> dict[str, int]:
    trusted = True if certificate is None else ssl.create_default_context(cafile=certificate)
    found = httpx.get(f"{url}/server_info", timeout=PATIENCE_S, verify=trusted).raise_for_status()
    state: dict[str, int] = found.json()["frontend_state"]
    return state


def wait_for_cuts(url: str, count: int, certificate: str | None = None) -> None:
    """Until so many clients were cut off in all."""
    wait_until(lambda: frontend_state(url, certificate)["slow_clients_cut"] >= count)


@pytest.mark.promise(16)
def test_promise_16_who_does_not_read_is_cut_off_and_its_request_ended(server: ServerProcess) -> None:
    url = server.url
    before = frontend_state(url)["slow_clients_cut"]
    with ask_and_never_read(url, LARGE) as client:
        wait_for_cuts(url, before + 1)
        # The connection is still open on the client's side; nothing of the request is left on the server's.
        assert_quiet(url)
        assert not server.stderr.count("Traceback")
        assert "is cut off" in server.stderr and "--write-timeout" in server.stderr
        client.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            while client.recv(1 << 16):
                pass


@pytest.mark.promise(16)
def test_promise_16_a_whole_answer_is_no_different(server: ServerProcess) -> None:
    """One large body, which is written at once, and after which nothing comes."""
    url = server.url
    before = frontend_state(url)["slow_clients_cut"]
    params = {**PARAMS, "max_new_tokens": 500}
    with ask_and_never_read(url, {**LARGE, "sampling_params": params, "stream": False, "top_logprobs_num": 20}):
        wait_for_cuts(url, before + 1)
        assert_quiet(url)


@pytest.mark.promise(16)
def test_promise_16_over_tls(tmp_path: Path) -> None:
    """The TLS layer holds the data that waits for the client."""
    certificate, key = make_certificate(tmp_path)
    options = ("--ssl-certfile", certificate, "--ssl-keyfile", key, "--log-level", "warning")
    with WarmServer(*options, "--write-timeout", f"{WRITE_TIMEOUT_S}") as server:
        url = server.url
        assert url.startswith("https://")
        process = psutil.Process(server.popen.pid)
        held = process.memory_info().rss
        stuck = [ask_and_never_read(url, LARGE, certificate) for _ in range(4)]
        wait_for_cuts(url, len(stuck), certificate)
        assert process.memory_info().rss - held < 32 << 20
        wait_until(lambda: frontend_state(url, certificate)["open_requests"] == 0)
        for connection in stuck:
            connection.close()


async def read_all(client: httpx.AsyncClient) -> list[float]:
    """Seconds between the frames of a whole stream. A frame holds what came since the last: one token or a few."""
    gaps, lines = list[float](), list[str]()
    params = {**PARAMS, "max_new_tokens": 200}
    body = {"input_ids": [7, 8, 9], "sampling_params": params, "stream": True}
    async with client.stream("POST", "/generate", json=body) as response:
        last = time.monotonic()
        async for line in response.aiter_lines():
            if line:
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
                lines.append(line.removeprefix("data: "))
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["meta_info"]["completion_tokens"] == 200
    return gaps


@pytest.mark.promise(16)
async def test_promise_16_memory_is_bounded(server: ServerProcess) -> None:
    url = server.url
    before = frontend_state(url)["slow_clients_cut"]
    process = psutil.Process(server.popen.pid)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        await read_all(client)
        held = process.memory_info().rss
        stuck = [ask_and_never_read(url, LARGE) for _ in range(8)]
        try:
            await read_all(client)
        finally:
            grown = process.memory_info().rss - held
            await asyncio.to_thread(wait_for_cuts, url, before + len(stuck))
            for connection in stuck:
                connection.close()
    # 64 KiB and a frame for each, beside the 128 KiB that the system holds; without a bound it is tens of megabytes.
    assert grown < 32 << 20, f"{grown >> 20} MiB for {len(stuck)} clients that do not read"
    assert_quiet(url)


@pytest.mark.promise(16)
async def test_promise_16_others_wait_hardly_longer_for_their_tokens() -> None:
    """Beside eight clients that read nothing, compared with beside eight that read all."""
    options = ("--log-level", "error", "--max-total-tokens", "30000", "--write-timeout", "60")
    with WarmServer(*options, program=PROGRAM, **Faults(step_ms=10).env) as server:
        url = server.url

        async def slowest_gaps(read: Callable[[socket.socket], None]) -> float:
            """The gap that 95 % of one client's gaps do not exceed, in seconds, while others `read` so."""
            others = [ask_and_never_read(url, LARGE) for _ in range(8)]
            reading = [threading.Thread(target=read, args=(other,)) for other in others]
            for thread in reading:
                thread.start()
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
                # By now those who are not read have filled what waits for them.
                await read_all(client)
                gaps = await read_all(client)
            for other in others:
                other.shutdown(socket.SHUT_RDWR)
            for thread, other in zip(reading, others, strict=True):
                thread.join()
                other.close()
            await asyncio.to_thread(assert_quiet, url)
            return percentile(gaps, 0.95)

        await assert_hardly_longer(lambda: slowest_gaps(lambda _other: None), lambda: slowest_gaps(drain), bound=1.5)


def drain(connection: socket.socket) -> None:
    """Read to the end."""
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            pass


@pytest.fixture(scope="module")
def impatient_server() -> Iterator[ServerProcess]:
    """Waits half a second for the rest of a request."""
    options = ("--log-level", "info", "--read-timeout", "0.5", "--skip-server-warmup")
    with WarmServer(*options, program=PROGRAM, **Faults().env) as server:
        yield server


@pytest.mark.promise(16)
@pytest.mark.parametrize("sent", [b"POST /generate HT", b"POST /generate HTTP/1.1\r\n%b\r\n\r\n{"])
def test_promise_16_who_begins_a_request_must_go_on(impatient_server: ServerProcess, sent: bytes) -> None:
    """Or such clients would hold all the connections that there can be."""
    address = httpx.URL(impatient_server.url)
    told = impatient_server.stderr.count("--read-timeout")
    for _ in range(2):
        with socket.create_connection((address.host, address.port or 80), timeout=PATIENCE_S) as client:
            client.sendall(
                sent.replace(b"%b", b"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9")
            )
            assert client.recv(12) == b"HTTP/1.1 408"
            drain(client)
    assert impatient_server.stderr.count("--read-timeout") > told
    # A request after a while of silence, and one whose body takes its time.
    with socket.create_connection((address.host, address.port or 80), timeout=PATIENCE_S) as client:
        time.sleep(1)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
    assert_quiet(impatient_server.url)
