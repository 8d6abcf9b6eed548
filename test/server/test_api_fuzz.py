"""Whatever is asked of whatever route, the answer is one that the OpenAPI document has for it, and no 5xx.

A few requests for each route, always the same. `make fuzz` draws new ones, and many more.
"""

import json
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from fixtures.api_fuzz import ApiFuzzer
from fixtures.scripted_server import scripted_server
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer
from mysglang.srt.entrypoints.app_options import AppOptions

ADMIN_KEY = "for the tests"
LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 60 * 60)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The embedded model with all of its routes open, to names that it does not know as well."""
    files = tmp_path_factory.mktemp("files")
    options = ("--dtype", "float32", "--log-level", "error", "--file-storage-path", str(files))
    # Drawn requests name folders, which a server makes where it works.
    with WarmServer(*options, "--admin-api-key", ADMIN_KEY, PWD=str(files)) as server:
        assert server.url
        yield server


def faults(fuzzer: ApiFuzzer, *, locked: bool, statuses: Counter[str]) -> list[str]:
    """Faults in any answer of any operation; `statuses` are added to."""
    told = []
    for operation in fuzzer.operations(locked=locked):
        asked = fuzzer.ask(operation)
        told += [f"{operation.label}: {fault}\n{request}" for fault, request in asked.faults.items()]
        statuses.update(asked.statuses)
        assert asked.statuses, operation.label
    return told


def test_every_route_for_clients(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {ADMIN_KEY}"}) as client:
        fuzzer = ApiFuzzer(server.url, ADMIN_KEY, **things_that_exist(client))
    statuses: Counter[str] = Counter()
    assert not (found := faults(fuzzer, locked=False, statuses=statuses)), "\n\n".join(found)
    # Else the test would mostly see how requests are refused.
    assert statuses["positive 200"] > statuses["positive 400"] > 0, statuses
    assert statuses["negative 400"] > 10 * statuses["negative 200"], statuses
    assert not server.stderr, server.stderr


def test_every_route_for_operators() -> None:
    """On an engine that only says that it did what it was told: else it would be asked to write files anywhere. It
    refuses names that it does not know.
    """
    statuses: Counter[str] = Counter()
    options = AppOptions(
        served_model_name="tiny", model_path="/models/tiny", admin_key=ADMIN_KEY, unknown_fields="error"
    )
    with scripted_server(options) as url:
        fuzzer = ApiFuzzer(url, ADMIN_KEY, model="tiny", known_ids={})
        assert not (found := faults(fuzzer, locked=True, statuses=statuses)), "\n\n".join(found)
    assert statuses["positive 200"] and statuses["negative 400"]


def things_that_exist(client: httpx.Client) -> dict[str, object]:
    """The model's name, and a name for each parameter that a path may have."""
    model = client.get("/v1/models").json()["data"][0]["id"]
    lines = {"file": ("lines.jsonl", json.dumps(LINE).encode())}
    files = [client.post("/v1/files", files=lines, data={"purpose": "batch"}).json()["id"] for _ in range(3)]
    batch = {"input_file_id": files[0], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    asked = {"input": "Hello", "max_output_tokens": 2}
    responses = [client.post("/v1/responses", json=asked).json()["id"] for _ in range(3)]
    known = {
        "file_id": files,
        "batch_id": [client.post("/v1/batches", json=batch).json()["id"]],
        "response_id": responses,
        "model": [model],
    }
    return {"model": model, "known_ids": known}
