"""Lists of 30 MB in every field of every route: each is refused at once, with little memory, and no other request
waits.

Routes and fields come from the OpenAPI document of the running server, so that a new field is tested by itself.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

ADMIN_KEY = "for the tests"
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"}
BODY_BYTES = 30 << 20
DIALECTS = {"/generate", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"}
"""Routes that are sent so much. The others share how a body is read, and are sent less."""
LESS_BYTES = 3 << 20
PARSED_BYTES = 1 << 16
"""Few enough values to be parsed, so that the fields themselves are checked."""
TIMES_THE_BODY = 3
PAUSE_S = 0.01
"""Pause between two requests of the client that measures how long it waits."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with WarmServer("--dtype", "float32", "--log-level", "error", "--admin-api-key", ADMIN_KEY) as server:
        assert server.url
        yield server


def fields(url: str) -> list[tuple[str, str, str]]:
    """Method, path and field of everything that may be a list or an object, and so of every union with one."""
    document = httpx.get(f"{url}/openapi.json").json()
    schemas, found = document["components"]["schemas"], []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None or "{" in path:
                continue
            body = schemas[content["schema"]["$ref"].rpartition("/")[2]]
            found += [(method, path, name) for name, field in body["properties"].items() if holds_several(field)]
    return found


def holds_several(field: Any) -> bool:
    text = str(field)
    return any(word in text for word in ("'array'", "'object'", "'$ref'"))


def bomb(field: str, size: int) -> bytes:
    return b'{"%s": [' % field.encode() + b"1," * (size // 2) + b"1]}"


class Peak:
    """The most memory that a process had, since it was last asked."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def reset(self) -> int:
        """Bytes that it has now."""
        (self._folder / "clear_refs").write_text("5")
        return self.read("VmRSS")

    def read(self, name: str = "VmHWM") -> int:
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


@contextmanager
def stranger(url: str) -> Iterator[list[float]]:
    """A client that asks again and again, and the duration of each answer."""
    waits: list[float] = []
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            while not over.wait(PAUSE_S):
                begun = time.monotonic()
                client.get("/v1/models")
                waits.append(time.monotonic() - begun)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


@pytest.mark.promise(42)
def test_promise_42_lists_of_any_size_in_any_field(server: ServerProcess) -> None:
    url, peak = server.url, Peak(server.popen.pid)
    found = fields(url)
    paths = {path for _, path, _ in found}
    assert len(paths) > 15 and paths >= DIALECTS
    with httpx.Client(base_url=url, headers=HEADERS, timeout=PATIENCE_S) as client:
        answer = client.post("/v1/chat/completions", content=bomb("messages", BODY_BYTES))
        assert answer.status_code == 400 and "more than" in answer.text, answer.text
        before, begun = peak.reset(), time.monotonic()
        with stranger(url) as waits:
            seen: set[str] = set()
            for method, path, field in found:
                # What is longer is refused before anybody looks into fields, so once for each route is enough.
                whole = BODY_BYTES if path in DIALECTS else LESS_BYTES
                for size in (PARSED_BYTES, whole) if path not in seen else (PARSED_BYTES,):
                    answer = client.request(method, path, content=bomb(field, size))
                    assert 400 <= answer.status_code < 500 or size == PARSED_BYTES, (path, field, answer.text)
                    assert answer.status_code < 500 and len(answer.content) < 20_000, (path, field, answer.text)
                seen.add(path)
        lasted = time.monotonic() - begun
        assert peak.read() - before < TIMES_THE_BODY * BODY_BYTES, (peak.read(), before)
    assert len(waits) > 20 and max(waits) < lasted / 5, "another client waits for a large part of the time"
    wait_until(lambda: peak.read("VmRSS") - before <= BODY_BYTES, lambda: "the memory was not given back")
    assert not server.stderr, server.stderr
