"""Headers of GGUF files, hostile ones among them, and the tokenizer that is made of one."""

from __future__ import annotations

import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import small_tokenizer
from fixtures.gguf_files import F32, Stored, plain, write_gguf
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.gguf.header import MAX_NUMBERS, read_header
from mysglang.srt.utils.gguf.tokenizer_json import WORDS
from mysglang.srt.utils.tokenizer import Tokenizer
from mysglang.srt.utils.weight_headers import MAX_TENSORS, HeaderRoom

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
METADATA = {"general.architecture": "llama", "llama.block_count": 3}
TENSOR = {"token_embd.weight": plain(torch.ones(4, 8))}


def write(path: Path, metadata: dict[str, Any] = METADATA, tensors: dict[str, Stored] = TENSOR, **more: Any) -> Path:
    return write_gguf(path / "model.gguf", metadata, tensors, **more)


def refusal(path: Path, room: HeaderRoom | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_header(path, room)
    return str(caught.value)


class TestHeader:
    def test_values_of_every_type(self, tmp_path: Path) -> None:
        metadata = {
            "a": "text",
            "b": 7,
            "c": 1e-6,
            "d": True,
            "e": [1, -2],
            "f": ["x", ""],
            "g": [0.5],
            "h": 3.4028234663852886e38,
        }
        header = read_header(write(tmp_path, metadata, TENSOR | {"x": plain(torch.ones(3))}))
        assert header.metadata == metadata
        assert [(tensor.name, tensor.shape) for tensor in header.tensors] == [
            ("token_embd.weight", (4, 8)),
            ("x", (3,)),
        ]
        assert (header.tensors[1].end - header.tensors[1].begin, header.tensors[0].begin % 32) == (12, 0)

    @pytest.mark.promise(49)
    def test_what_claims_too_much_is_not_read(self, tmp_path: Path) -> None:
        for counts, words in (
            ((MAX_TENSORS + 1, 2), f"it would hold {MAX_TENSORS + 1} tensors"),
            ((1, 1 << 40), "metadata keys"),
            ((1, 3), "damaged"),
            ((2, 2), "damaged"),
        ):
            assert words in refusal(write(tmp_path, counts=counts))
        long = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["token"] * 100}
        assert "the headers of a checkpoint have at most 900 together" in refusal(
            write(tmp_path, long), HeaderRoom(900)
        )
        path = write(tmp_path, METADATA | {"a": [1] * (MAX_NUMBERS // 2), "b": [1] * (MAX_NUMBERS // 2 + 1)})
        assert f"up to the metadata key b have {MAX_NUMBERS + 1} numbers; at most {MAX_NUMBERS} are" in refusal(path)
        path = write(tmp_path, long)
        content = path.read_bytes()
        for count in (1 << 22, 1 << 60):
            at = content.index(struct.pack("<IQ", 8, 100)) + 4
            path.write_bytes(content[:at] + struct.pack("<Q", count) + content[at + 8 :])
            assert "at most" in refusal(path)

    @pytest.mark.promise(49)
    def test_tensors_stand_apart_and_within_the_file(self, tmp_path: Path) -> None:
        two = {"a": plain(torch.ones(16)), "b": plain(torch.ones(16))}
        for place, words in ((32, "share bytes"), (8, "would have the bytes"), (1 << 50, "would have the bytes")):
            assert words in refusal(write(tmp_path, tensors=two, places={"b": place}))
        for shape in ((1 << 62, 1 << 62), (0, 4), (1,) * 5):
            assert "damaged" in refusal(write(tmp_path, tensors={"a": Stored(F32, shape, bytes(64))}))
        for alignment in (0, 33, 1 << 20):
            assert "general.alignment" in refusal(write(tmp_path, METADATA | {"general.alignment": alignment}))

    def test_what_is_not_supported_is_named(self, tmp_path: Path) -> None:
        assert "stored as IQ4_NL, which is not supported; supported are F32" in refusal(
            write(tmp_path, tensors={"a": Stored(20, (32,), bytes(18))})
        )
        assert "stored as number 99" in refusal(write(tmp_path, tensors={"a": Stored(99, (32,), bytes(18))}))
        assert "GGUF version 1; versions 2 and 3 are read" in refusal(write(tmp_path, version=1))
        assert "big-endian" in refusal(write(tmp_path, version=3 << 24))
        (tmp_path / "model.gguf").write_bytes(b"GGML" + bytes(60))
        assert "is no GGUF file" in refusal(tmp_path / "model.gguf")
        (tmp_path / "model.gguf").unlink()
        os.mkfifo(tmp_path / "model.gguf")
        assert "is a pipe" in refusal(tmp_path / "model.gguf")

    @pytest.mark.promise(49)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(at=st.integers(0, 400), byte=st.integers(0, 255), kept=st.none() | st.integers(0, 400))
    def test_any_damage_is_found_or_harmless(self, tmp_path: Path, at: int, byte: int, kept: int | None) -> None:
        path = write(tmp_path, METADATA | {"tokenizer.ggml.tokens": ["a", "b"], "x": [1, 2]})
        content = bytearray(path.read_bytes())
        content[at % len(content)] = byte
        path.write_bytes(content[:kept])
        try:
            header = read_header(path)
        except ConfigError as error:
            assert "model.gguf" in str(error)
        else:
            assert all(tensor.end <= len(content) for tensor in header.tensors)


def spoken(tokenizer: Any) -> dict[str, Any]:
    """The vocabulary of a tokenizer of ours by GGUF's keys: texts, types, BOS and EOS."""
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    special = {number: token.special for number, token in tokenizer.get_added_tokens_decoder().items()}
    types = [{None: NORMAL, True: CONTROL, False: USER_DEFINED}[special.get(number)] for number in range(len(tokens))]
    types = [BYTE if token in small_tokenizer.BYTES else kind for token, kind in zip(tokens, types, strict=True)]
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": tokens.index(small_tokenizer.BOS),
        "tokenizer.ggml.eos_token_id": tokens.index(small_tokenizer.EOS),
    }


TEXTS = [
    *small_tokenizer.CORPUS[:6],
    "",
    " two  spaces",
    "It's 12345!",
    f"a{small_tokenizer.TURN}b<think> c",
    "\n\n\t x",
]


class TestTokenizer:
    def test_bpe_over_bytes(self, tmp_path: Path) -> None:
        original = small_tokenizer.byte_level()
        merges = [" ".join(pair) for pair in json.loads(original.to_str())["model"]["merges"]]
        bpe = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": merges}
        template = {"tokenizer.chat_template": "{{ messages }}"}
        ours = Tokenizer.load(write(tmp_path, METADATA | bpe | template | spoken(original)))
        assert [ours.encode(text) for text in TEXTS] == [original.encode(text).ids for text in TEXTS]
        assert [ours.decode(ours.encode(text), skip_special_tokens=False) for text in TEXTS] == TEXTS
        assert ours.special_tokens == {"bos_token": small_tokenizer.BOS, "eos_token": small_tokenizer.EOS}
        assert ours.config["chat_template"] == "{{ messages }}"
        named = {"tokenizer.chat_templates": ["tool"], "tokenizer.chat_template.tool": "T"}
        ours = Tokenizer.load(write(tmp_path, METADATA | bpe | template | named | spoken(original)))
        assert ours.config["chat_template"] == [
            {"name": "default", "template": "{{ messages }}"},
            {"name": "tool", "template": "T"},
        ]
        begins = {"tokenizer.ggml.add_bos_token": True}
        ours = Tokenizer.load(write(tmp_path, METADATA | bpe | begins | spoken(original)))
        assert ours.encode("x")[0] == ours.bos_token_id

    def test_bpe_by_scores(self, tmp_path: Path) -> None:
        original = small_tokenizer.metaspace()
        vocabulary = spoken(original)
        tokens: list[str] = vocabulary["tokenizer.ggml.tokens"]
        scores = [-float(number) for number in range(len(tokens))]
        spm = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}
        ours = Tokenizer.load(write(tmp_path, METADATA | spm | vocabulary))
        kinds = vocabulary["tokenizer.ggml.token_type"]
        merged = {
            token: score
            for token, score, kind in zip(tokens, scores, kinds, strict=True)
            if kind in (NORMAL, USER_DEFINED)
        }
        for text in TEXTS:
            ids = ours.encode(text, add_special_tokens=False)
            if small_tokenizer.TURN not in text and text:
                assert [ours.id_of(piece) for piece in merged_by_score("▁" + text.replace(" ", "▁"), merged)] == ids
                assert ours.decode(ids) == text
        assert ours.encode("x")[0] == ours.bos_token_id
        plain_start = Tokenizer.load(
            write(tmp_path, METADATA | spm | vocabulary | {"tokenizer.ggml.add_space_prefix": False})
        )
        assert plain_start.decode(plain_start.encode(" x", add_special_tokens=False)) == " x"

    def test_a_tokenizer_json_within_the_file_is_taken(self, tmp_path: Path) -> None:
        original = small_tokenizer.byte_fallback()
        whole = {"tokenizer.huggingface.json": original.to_str(), "tokenizer.ggml.model": "gpt2"}
        ours = Tokenizer.load(write(tmp_path, METADATA | whole | spoken(original)))
        assert [ours.encode(text) for text in TEXTS] == [original.encode(text).ids for text in TEXTS]

    def test_a_vocabulary_that_would_take_long_is_refused(self, tmp_path: Path) -> None:
        spm = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a" * (1 << 23)] * 3}
        with pytest.raises(ConfigError, match="tokens of 25165824 characters together"):
            Tokenizer.load(write(tmp_path, METADATA | spm | {"tokenizer.ggml.scores": [0.0] * 3}))

    @pytest.mark.parametrize(
        ("metadata", "words"),
        [
            ({}, "it holds no tokenizer; give one with --tokenizer-path"),
            ({"tokenizer.ggml.model": "rwkv"}, "of the kind 'rwkv' is not supported"),
            ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "viking"}, "'viking'\\) is not known here"),
            ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, "merges must be a list of texts"),
            ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, "scores must be a list of 1 numbers"),
            (
                {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a b"]}
                | {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [float("nan")]},
                "token_type must be a list of whole numbers",
            ),
            ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [1]}, "tokens must be a list of texts"),
        ],
    )
    def test_what_is_missing_is_named(self, tmp_path: Path, metadata: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Tokenizer.load(write(tmp_path, METADATA | metadata))

    @pytest.mark.parametrize(
        ("pre", "words"),
        [
            ("llama-bpe", ["I", "'LL", " pay", " ", "123", "45", " euros", "!!\n\n", "Grüße", "  ", " x"]),
            ("qwen2", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " euros", "!!\n\n", "Grüße", "  ", " x"]),
            ("tekken", ["I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " euros", "!!\n\n", "Grüße", "  ", " x"]),
        ],
    )
    def test_words_are_told_apart(self, pre: str, words: list[str]) -> None:
        (pattern,) = (step["pattern"]["Regex"] for step in WORDS[pre].steps if step["type"] == "Split")
        assert regex.findall(pattern, "I'LL pay 12345 euros!!\n\nGrüße   x") == words


def merged_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """The algorithm of SentencePiece's BPE: join the two neighbours whose joint has the highest score, leftmost first,
    as long as there are any; characters that are no token become bytes.
    """
    parts = list(text)
    while joints := [(-scores[one + two], at) for at, (one, two) in enumerate(pairs(parts)) if one + two in scores]:
        _, at = min(joints)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [piece for part in parts for piece in ([part] if part in scores else byte_tokens(part))]


def pairs(parts: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(parts))


def byte_tokens(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]
