"""Weights of a running server: from disk, over HTTP and by broadcast, on the embedded model."""

import base64
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save

from fixtures.patience import PATIENCE_S
from fixtures.trainer import TINY, broadcast, make_changed
from fixtures.warm_start import WarmServer

ADMIN = {"Authorization": "Bearer master"}
ASK = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 12}}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with other weights."""
    return make_changed(tmp_path_factory.mktemp("changed") / "model")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    options = ("--admin-api-key", "master", "--dtype", "float32", "--log-level", "warning", "--weight-version", "v0")
    with WarmServer(*options) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as found:
        yield found


@pytest.fixture
def http(client: httpx.Client) -> httpx.Client:
    """Client of a server with the embedded model's weights."""
    post(client, "/update_weights_from_disk", {"model_path": str(TINY), "weight_version": "v0"})
    return client


def say(client: httpx.Client) -> tuple[list[int], str]:
    answer = client.post("/generate", json=ASK).json()
    return answer["output_ids"], answer["meta_info"]["weight_version"]


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body, headers=ADMIN)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def test_from_disk_over_http_and_back(http: httpx.Client, changed: Path) -> None:
    before = say(http)
    assert before[1] == http.get("/model_info").json()["weight_version"] == "v0"
    sums = post(http, "/weights_checker", {"action": "checksum"})["checksums"]
    body = {"model_path": str(changed), "weight_version": "v1"}
    # Only with the admin key, and never by GET.
    assert http.post("/update_weights_from_disk", json=body).status_code == 401
    assert http.get("/update_weights_from_disk", headers=ADMIN).status_code == 405
    told = post(http, "/update_weights_from_disk", body)
    assert told == {"success": True, "message": told["message"], "num_paused_requests": 0}
    after = say(http)
    assert after[0] != before[0]
    assert after[1] == http.get("/model_info").json()["weight_version"] == "v1"
    completion = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    if completion.status_code == 200:
        assert completion.json()["metadata"] == {"weight_version": "v1"}

    # One tensor back, in JSON; the others as plain bytes.
    old = load_file(TINY / "model.safetensors")
    first, *rest = sorted(old)
    encoded = base64.b64encode(save({first: old[first]})).decode()
    post(http, "/update_weights_from_tensor", {"serialized_named_tensors": [encoded]})
    rows = post_list(http, first)
    assert torch.allclose(torch.tensor(rows), old[first][:2].float())
    kind = {"content-type": "application/octet-stream", **ADMIN}
    data = save({name: old[name] for name in rest})
    response = http.post("/update_weights_from_tensor?weight_version=v0", content=data, headers=kind)
    assert response.status_code == 200, response.text
    assert say(http) == before
    assert post(http, "/weights_checker", {"action": "checksum"})["checksums"] == sums
    assert post(http, "/update_weight_version", {"new_version": "same"})["success"]
    assert say(http) == (before[0], "same")


def test_tiny_names_the_embedded_model(http: httpx.Client) -> None:
    """The name means what --model-path means by it. An error of a name that is no model names the field."""
    assert post(http, "/update_weights_from_disk", {"model_path": "tiny"})["success"]
    for wrong in ("tiny/none", str(TINY.parent)):
        refused = http.post("/update_weights_from_disk", json={"model_path": wrong}, headers=ADMIN)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model_path"), refused.text


def post_list(client: httpx.Client, name: str) -> list[Any]:
    response = client.post("/get_weights_by_name", json={"name": name, "truncate_size": 2}, headers=ADMIN)
    rows: list[Any] = response.json()
    return rows


@pytest.mark.promise(49)
def test_bad_weights_leave_the_server_as_it_was(http: httpx.Client, changed: Path, tmp_path: Path) -> None:
    before = say(http)
    broken = tmp_path / "broken"
    shutil.copytree(changed, broken)
    (broken / "model.safetensors").write_bytes((changed / "model.safetensors").read_bytes()[:-7])
    pipes = {}
    for file in ("config.json", "model.safetensors"):
        pipes[file] = shutil.copytree(changed, tmp_path / f"pipe-{file}")
        (pipes[file] / file).unlink()
        os.mkfifo(pipes[file] / file)
    tensors = load_file(changed / "model.safetensors")
    name = max(tensors)
    wrong = base64.b64encode(save({name: tensors[name][:1].contiguous(), "nobody": torch.zeros(1)})).decode()
    for path, body, what in (
        ("/update_weights_from_disk", {"model_path": str(broken)}, "damaged"),
        ("/update_weights_from_disk", {"model_path": str(tmp_path / "nowhere")}, "model_path"),
        *(("/update_weights_from_disk", {"model_path": str(pipes[file])}, f"{file} is a pipe") for file in pipes),
        ("/update_weights_from_tensor", {"serialized_named_tensors": [wrong]}, "nobody"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["gASVCgAAAAAAAACMBnBpY2tsZZQu"]}, "damaged"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["?"]}, "base64"),
        ("/get_weights_by_name", {"name": "nobody"}, "no tensor"),
        ("/destroy_weights_update_group", {}, "in no group"),
        ("/update_weights_from_distributed", {"names": ["a"], "dtypes": [], "shapes": []}, "equally many"),
    ):
        response = http.post(path, json=body, headers=ADMIN)
        assert response.status_code == 400, response.text
        assert what in response.json()["error"]["message"]
    assert say(http) == before


def test_while_requests_run(http: httpx.Client, changed: Path) -> None:
    """A stream ends with the weights with which it began, requests that arrive during the change wait, and clients
    notice only the version.
    """
    long = {**ASK, "sampling_params": {"temperature": 0, "max_new_tokens": 150, "ignore_eos": True}, "rid": "long"}
    expected = http.post("/generate", json={**long, "rid": "solo"}).json()["output_ids"]
    answers: list[dict[str, Any]] = []
    with http.stream("POST", "/generate", json={**long, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        body = {"model_path": str(changed), "weight_version": "v1"}
        updating = threading.Thread(target=lambda: answers.append(post(http, "/update_weights_from_disk", body)))
        updating.start()
        last = [line for line in lines if line.startswith("data: {")][-1]
    updating.join(PATIENCE_S)
    assert answers[0]["success"]
    assert httpx.Response(200, text=last.removeprefix("data: ")).json()["output_ids"] == expected
    assert say(http)[1] == "v1"


def test_a_trainer_broadcasts(http: httpx.Client, changed: Path) -> None:
    before = say(http)[0]
    broadcast(http, changed / "model.safetensors", version="step-1", headers=ADMIN)
    after = say(http)
    assert after[0] != before
    post(http, "/update_weights_from_disk", {"model_path": str(changed)})
    assert say(http) == (after[0], "step-1")
