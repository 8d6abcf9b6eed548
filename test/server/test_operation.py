"""A server with several keys: pausing, profiling and keeping requests, on the embedded model."""

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.warm_start import WarmServer
from mysglang.bench.refused import Failed
from mysglang.cli.api_client import ServerRefused
from mysglang.cli.main import run

ADMIN = {"Authorization": "Bearer master"}
PROMPT = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client with one of two keys, of a server that runs in float32."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# teams\none\ntwo\n")
    options = ("--api-key-file", str(keys), "--admin-api-key", "master", "--enable-priority-scheduling")
    names = ("--served-model-aliases", "small", "gpt-4o", "--dtype", "float32", "--log-level", "warning")
    with (
        WarmServer(*options, *names) as server,
        httpx.Client(base_url=server.url, headers={"x-api-key": "two"}, timeout=PATIENCE_S) as client,
    ):
        yield client


def test_names_keys_and_loads(http: httpx.Client) -> None:
    assert [card["id"] for card in http.get("/v1/models").json()["data"]][1:] == ["small", "gpt-4o"]
    chat = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "priority": 5}
    assert http.post("/v1/chat/completions", json=chat).status_code == 200
    assert http.post("/generate", json=PROMPT, headers={"x-api-key": "three"}).status_code == 401
    assert http.post("/freeze_gc").status_code == 403
    assert http.post("/freeze_gc", headers=ADMIN).status_code == 200
    [load] = http.get("/v1/loads").json()["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)


@pytest.mark.promise(40)
def test_promise_40_what_one_key_sent_is_not_cached_for_another(http: httpx.Client) -> None:
    def cached(key: str, **fields: object) -> int:
        body = {**PROMPT, "text": "A prompt that nobody else here sends, of some length.", **fields}
        answer = http.post("/generate", json=body, headers={"x-api-key": key}).raise_for_status().json()
        return int(answer["meta_info"]["cached_tokens"])

    assert [cached("one"), cached("two"), cached("two", cache_salt="s"), cached("one", cache_salt="s")] == [0] * 4
    assert min(cached("one"), cached("two"), cached("one", cache_salt="s")) > 0


@pytest.mark.promise(40)
def test_promise_40_what_one_key_keeps_here_another_does_not_find(http: httpx.Client) -> None:
    one, two = {"x-api-key": "one"}, {"x-api-key": "two"}
    session = http.post("/open_session", json={"session_id": "s"}, headers=one).json()
    body = {**PROMPT, "session_params": {"id": session}}
    assert http.post("/generate", json=body, headers=one).status_code == 200
    assert http.post("/generate", json=body, headers=two).status_code == 400
    http.post("/close_session", json={"session_id": "s"}, headers=two)
    assert http.post("/open_session", json={"session_id": "s"}, headers=one).status_code == 400
    response = http.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 8}, headers=one).json()
    path = f"/v1/responses/{response['id']}"
    assert [http.get(path, headers=each).status_code for each in (one, two)] == [200, 404]
    further = {"input": "And then?", "previous_response_id": response["id"], "max_output_tokens": 8}
    assert http.post("/v1/responses", json=further, headers=two).status_code in (400, 404)
    assert http.delete(path, headers=two).status_code == 404
    assert http.delete(path, headers=one).status_code == 200


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_holds_requests_and_changes_no_answer(http: httpx.Client, mode: str) -> None:
    expected = http.post("/generate", json=PROMPT).json()["output_ids"]
    assert http.post("/pause_generation", json={"mode": mode}, headers=ADMIN).status_code == 200
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(http.post("/generate", json=PROMPT)))
    asking.start()
    wait_until(lambda: http.get("/server_info").json()["internal_states"][0]["num_waiting_reqs"] == 1)
    assert not answers
    assert http.get("/health").status_code == 200
    assert http.post("/continue_generation", headers=ADMIN).status_code == 200
    asking.join(PATIENCE_S)
    assert answers[0].json()["output_ids"] == expected


def test_a_profile_and_the_requests_of_a_while(http: httpx.Client, tmp_path: Path) -> None:
    http.post("/configure_logging", json={"dump_requests_folder": str(tmp_path / "kept")}, headers=ADMIN)
    profile = {"output_dir": str(tmp_path), "profile_id": "p", "activities": ["CPU"]}
    assert http.post("/start_profile", json=profile, headers=ADMIN).status_code == 200
    answer = http.post("/generate", json=PROMPT).json()
    stopped = http.post("/stop_profile", headers=ADMIN)
    assert stopped.status_code == 200, stopped.text
    http.post("/configure_logging", json={"dump_requests_folder": ""}, headers=ADMIN)
    trace = orjson.loads(gzip.decompress((tmp_path / "p.trace.json.gz").read_bytes()))
    assert any("aten::" in event.get("name", "") for event in trace["traceEvents"])
    [file] = (tmp_path / "kept").iterdir()
    record = orjson.loads(file.read_bytes())
    again = http.post("/generate", json=record["request"]).json()
    assert again["output_ids"] == answer["output_ids"] == record["answers"][0]["output_ids"]


def test_the_command_that_profiles_says_what_is_missing(
    http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", "--base-url", str(http.base_url), "--no-cpu", "--no-gpu", "--output-dir", str(tmp_path)]
    command += ["--api-key", "two"]
    with pytest.raises(ServerRefused, match="the server answered 403"):
        run(command)
    command += ["--admin-api-key", "master"]
    with pytest.raises(Failed, match="after 1 s not all steps had come"):
        run([*command, "--timeout", "1"])
    capsys.readouterr()
    # The recording that got no step is over: the next one can begin.
    assert run([*command, "--prompt", "One, two,", "--profile-by-stage", "--num-steps", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
