"""A server that gives its memory back and takes it again, and one that was made slow."""

from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess

ADMIN = {"Authorization": "Bearer master"}
ASK = {
    "text": "The capital of France is",
    "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True},
}
CACHE_TOKENS = 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--admin-api-key", "master", "--log-level", "warning", "--max-total-tokens", str(CACHE_TOKENS))
    with ServerProcess(*options) as started:
        assert started.url
        yield started


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    return client.post(path, json=body, headers=ADMIN)


def reserved(server: ServerProcess) -> int:
    """Returns the bytes of the scheduler's address space. A cache has its addresses from the start, and takes memory
    where it is written.
    """
    found: int = psutil.Process(server.child("mysglang::scheduler_TP0").pid).memory_info().vms
    return found


def test_memory_goes_back_and_comes_again(http: httpx.Client, server: ServerProcess) -> None:
    before = http.post("/generate", json=ASK).json()["output_ids"]
    assert http.post("/release_memory_occupation").status_code == 401
    assert http.get("/release_memory_occupation", headers=ADMIN).status_code == 405
    held = reserved(server)
    told = post(http, "/release_memory_occupation", {})
    assert told.status_code == 200, told.text
    usage = http.get("/server_info").json()["internal_states"][0]["memory_usage"]
    assert held - reserved(server) > 0.5 * (usage["weights"] + usage["kvcache"]) * (1 << 30)
    refused = http.post("/generate", json=ASK)
    assert refused.status_code == 503
    assert "given its memory back" in refused.json()["error"]["message"]
    assert http.get("/health_generate").status_code == 503
    assert post(http, "/weights_checker", {"action": "checksum"}).status_code == 400
    assert post(http, "/resume_memory_occupation", {"tags": ["kv_cache"]}).status_code == 200
    assert http.post("/generate", json=ASK).status_code == 503
    assert post(http, "/resume_memory_occupation", {}).status_code == 200
    assert http.post("/generate", json=ASK).json()["output_ids"] == before
    assert post(http, "/resume_memory_occupation", {}).status_code == 400
    assert post(http, "/release_memory_occupation", {"tags": ["everything"]}).status_code == 400


def test_slow_and_quick_again(http: httpx.Client) -> None:
    assert post(http, "/slow_down", {"forward_sleep_time": 0.1}).status_code == 200
    assert http.post("/generate", json=ASK).json()["meta_info"]["e2e_latency"] > 1.0
    assert post(http, "/slow_down", {}).status_code == 200
    assert post(http, "/slow_down", {"forward_sleep_time": -1}).status_code == 400
