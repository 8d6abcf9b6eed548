"""Servers whose models score: a cross-encoder that ranks documents, a classifier that names labels. Both tiny and
random, and both say what transformers says.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fixtures.patience import PATIENCE_S
from fixtures.pooling_checkpoints import Saved, save_decoder, save_encoder, set_config
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

OPTIONS = ("--dtype", "float32", "--log-level", "warning", "--max-total-tokens", "2000")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
QUERY = "which fox is brown"
DOCUMENTS = ["the brown fox", "a dog", "no fox at all [SEP] here", "", "brown brown"]
LABELS = ("calm", "glad", "sad")


def write_tokenizer(folder: Path) -> Tokenizer:
    """WordPiece by letters, framed as BERT frames a text and a pair."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "[SEP]", "cls_token": "[CLS]"}))
    return tokenizer


def served(folder: Path) -> ServerProcess:
    return WarmServer("--model-path", str(folder), "--served-model-name", "scorer", *OPTIONS)


def post(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=1e-4)


def softmax(scores: Sequence[float]) -> np.ndarray:
    exp = np.exp(np.array(scores) - np.max(scores))
    shares: np.ndarray = exp / exp.sum()
    return shares


class TestCrossEncoder:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory: pytest.TempPathFactory) -> Saved:
        return save_encoder(tmp_path_factory.mktemp("cross"), "bert", labels=1)

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, saved: Saved) -> list[float]:
        """transformers' score of each pair."""
        pairs = [write_tokenizer(saved.folder).encode(QUERY, document) for document in DOCUMENTS]
        return [float(saved.reference(pair.ids, pair.type_ids)) for pair in pairs]

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, saved: Saved, expected: list[float]) -> Iterator[ServerProcess]:
        with served(saved.folder) as server:
            assert server.url
            yield server

    def test_ranks(self, server: ServerProcess, expected: list[float]) -> None:
        relevance = 1 / (1 + np.exp(-np.array(expected)))
        order = np.argsort(-relevance).tolist()
        ranked = post(server, "/v1/rerank", query=QUERY, documents=DOCUMENTS).json()
        assert [one["index"] for one in ranked] == order
        assert [one["document"] for one in ranked] == [DOCUMENTS[index] for index in order]
        close([one["score"] for one in ranked], relevance[order])
        short = post(server, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=False).json()
        assert [(one["index"], one["document"]) for one in short] == [(index, None) for index in order[:2]]

    def test_as_cohere_and_jina_answer(self, server: ServerProcess, expected: list[float]) -> None:
        order = np.argsort(-np.array(expected)).tolist()
        answer = post(server, "/v2/rerank", model="scorer", query=QUERY, documents=DOCUMENTS, top_n=3).json()
        assert [one["index"] for one in answer["results"]] == order[:3]
        assert all("document" not in one for one in answer["results"])
        told = post(server, "/v2/rerank", query=QUERY, documents=DOCUMENTS, return_documents=True).json()
        assert told["results"][0]["document"] == {"text": DOCUMENTS[order[0]]}

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"documents": []}, "documents"),
            ({"documents": ["a"], "top_n": 0}, "top_n"),
            ({"documents": ["a"], "instruct": "b"}, "instruct"),
            ({"documents": ["a", "b " * 100]}, "documents"),
            ({"documents": "a"}, "documents"),
        ],
    )
    def test_refuses_by_name(self, server: ServerProcess, body: dict[str, Any], param: str) -> None:
        refused = post(server, "/v1/rerank", query=QUERY, **body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param

    def test_makes_no_vectors(self, server: ServerProcess) -> None:
        refused = post(server, "/v1/embeddings", input="a")
        assert refused.status_code == 400 and "/v1/classify" in refused.json()["error"]["message"]


class TestClassifier:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory: pytest.TempPathFactory) -> Saved:
        saved = save_decoder(tmp_path_factory.mktemp("classifier"), "qwen3", labels=3)
        set_config(saved.folder, id2label={str(i): label for i, label in enumerate(LABELS)})
        return saved

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, saved: Saved) -> list[list[float]]:
        tokenizer = write_tokenizer(saved.folder)
        return [saved.reference(tokenizer.encode(text).ids, None).tolist() for text in DOCUMENTS]

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, saved: Saved, expected: list[list[float]]) -> Iterator[ServerProcess]:
        with served(saved.folder) as server:
            assert server.url
            yield server

    def test_names_labels(self, server: ServerProcess, expected: list[list[float]]) -> None:
        answer = post(server, "/v1/classify", model="scorer", input=DOCUMENTS).json()
        assert answer["object"] == "list" and answer["id"].startswith("classify-")
        assert [one["index"] for one in answer["data"]] == list(range(len(DOCUMENTS)))
        assert [one["label"] for one in answer["data"]] == [LABELS[int(np.argmax(scores))] for scores in expected]
        assert {one["num_classes"] for one in answer["data"]} == {3}
        close([one["probs"] for one in answer["data"]], [softmax(scores) for scores in expected])

    def test_native_scores(self, server: ServerProcess, expected: list[list[float]]) -> None:
        for path in ("/classify", "/encode"):
            close([one["embedding"] for one in post(server, path, text=DOCUMENTS).json()], expected)
        close(post(server, "/classify", text=DOCUMENTS[0]).json()["embedding"], expected[0])

    def test_scores(self, server: ServerProcess, expected: list[list[float]]) -> None:
        body = {"query": "the brown ", "items": ["fox"]}
        close(post(server, "/v1/score", **body).json()["scores"], [expected[0]])
        close(post(server, "/v1/score", **body, apply_softmax=True).json()["scores"], [softmax(expected[0])])
        turned = {"query": "fox", "items": "the brown ", "item_first": True}
        close(post(server, "/v1/score", **turned).json()["scores"], [expected[0]])
        refused = post(server, "/v1/score", **body, label_token_ids=[1])
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "label_token_ids"

    def test_ranks_nothing(self, server: ServerProcess) -> None:
        refused = post(server, "/v1/rerank", query="a", documents=["b"])
        assert refused.status_code == 400 and "cross-encoder" in refused.json()["error"]["message"]
