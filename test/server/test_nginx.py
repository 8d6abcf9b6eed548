"""examples/deployment/nginx.conf with a real nginx: streams are not held back, and a client that leaves is noticed."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from fixtures.certificate import make_certificate
from fixtures.patience import PATIENCE_S, wait_until
from fixtures.ports import reserved_port
from fixtures.processes import running
from fixtures.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "ignore_eos": True}


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[httpx.Client]:
    """A client of nginx, which runs the documented file with this machine's ports and paths before `upstream`."""
    with reserved_port() as port, nginx_at(port, folder, upstream) as client:
        yield client


@contextmanager
def nginx_at(port: int, folder: Path, upstream: str) -> Iterator[httpx.Client]:
    assert NGINX is not None
    cert, key = make_certificate(folder)
    text = (ROOT / "examples" / "deployment" / "nginx.conf").read_text(encoding="utf-8")
    for documented, here in (
        ("127.0.0.1:30000", upstream),
        ("8443 ssl", f"127.0.0.1:{port} ssl"),
        ("/etc/nginx/cert.pem", cert),
        ("/etc/nginx/key.pem", key),
        ("http {", "http { access_log off; " + "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in TEMP)),
    ):
        assert text.count(documented) == 1
        text = text.replace(documented, here)
    config = folder / "nginx.conf"
    config.write_text(f"pid {folder}/pid; daemon off; error_log stderr;\n{text}", encoding="utf-8")
    os.chmod(folder, 0o755)
    command = [NGINX, "-p", str(folder), "-c", str(config), "-e", "stderr"]
    trusted = ssl.create_default_context(cafile=cert)
    with running(command, stderr=subprocess.DEVNULL) as process:
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=PATIENCE_S) as client:
            wait_until(lambda: answers(client), lambda: "nginx does not answer")
            yield client
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def proxy(tiny_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with nginx(tmp_path_factory.mktemp("nginx"), tiny_server.url.removeprefix("http://")) as client:
        yield client


class OneFrame(BaseHTTPRequestHandler):
    """Sends one frame of a stream, and the end of it only when the test has seen the first."""

    seen = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: first\n\n")
        self.wfile.flush()
        self.seen.wait(PATIENCE_S)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


TEMP = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def running_requests(server: ServerProcess) -> int:
    load = httpx.get(f"{server.url}/v1/loads").json()
    return int(load["loads"][0]["num_running_reqs"])


def test_a_frame_is_passed_on_before_the_next_exists(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OneFrame) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        try:
            with (
                nginx(tmp_path, f"127.0.0.1:{upstream.server_port}") as client,
                client.stream("POST", "/v1/chat/completions", json={}) as answer,
            ):
                lines = answer.iter_lines()
                assert next(lines) == "data: first", "with buffering, nginx would wait for more"
                OneFrame.seen.set()
                assert [line for line in lines if line] == ["data: [DONE]"]
        finally:
            OneFrame.seen.set()
            upstream.shutdown()


def test_a_client_that_leaves_ends_its_request(proxy: httpx.Client, tiny_server: ServerProcess) -> None:
    with proxy.stream("POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 8000}) as answer:
        lines = answer.iter_lines()  # kept: when it is collected, it closes the answer
        assert answer.status_code == 200 and next(lines).startswith("data: ")
        wait_until(lambda: running_requests(tiny_server) == 1, lambda: "the request does not run")
    wait_until(lambda: running_requests(tiny_server) == 0, lambda: "the request has not ended with its client")


def test_only_the_routes_of_clients_are_shown(proxy: httpx.Client) -> None:
    assert proxy.get("/v1/models").status_code == 200
    hidden = ("/server_info", "/metrics", "/generate", "/flush_cache", "/v1/models/../../debug/state", "/v1/loads")
    assert {path: proxy.get(path).status_code for path in hidden} == dict.fromkeys(hidden, 404)


def test_a_long_body_is_passed_on(proxy: httpx.Client) -> None:
    long = {"model": "default", "messages": [{"role": "user", "content": "word " * 400_000}]}
    answer = proxy.post("/v1/chat/completions", json=long)
    assert answer.status_code == 400 and "context length" in answer.json()["error"]["message"]
