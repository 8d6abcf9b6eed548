"""Parts of a valid config that have no effect are named: unknown overriding keys, and ids beyond the vocabulary."""

import json
from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.configs.config_warnings import config_warnings
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "a_key_of_its_own": 1,
}
GPT_NEOX = LLAMA | {"architectures": ["GPTNeoXForCausalLM"]}


def warnings(folder: Path, config: dict[str, Any], overrides: dict[str, Any]) -> list[str]:
    (folder / "config.json").write_text(json.dumps(config))
    return list(config_warnings(ModelConfig.from_path(str(folder), overrides=overrides)))


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        (LLAMA, "max_position_embedings", "did you mean max_position_embeddings?"),
        (LLAMA, "rope_scalling", "did you mean rope_scaling?"),
        (LLAMA, "a_key_of_its_won", "did you mean a_key_of_its_own?"),
        (LLAMA, "sliding", "nor is it one of LlamaForCausalLM."),
        (GPT_NEOX, "hiden_size", "did you mean hidden_size?"),
    ],
)
def test_keys_that_nothing_reads(tmp_path: Path, config: dict[str, Any], key: str, words: str) -> None:
    (line,) = warnings(tmp_path, config, {key: 1})
    assert line.startswith(f"--json-model-override-args: {key} has no effect") and line.endswith(words)


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_position_embeddings": 64, "a_key_of_its_own": 2, "attention_bias": True, "torch_dtype": "float32"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "eos_token_id": [3, 4]},
        {},
    ],
)
def test_keys_that_are_known(tmp_path: Path, overrides: dict[str, Any]) -> None:
    assert warnings(tmp_path, LLAMA, overrides) == []


def test_keys_that_only_the_code_of_transformers_may_know(tmp_path: Path) -> None:
    assert warnings(tmp_path, GPT_NEOX, {"rotary_pct": 0.5}) == []


def test_ends_beyond_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1000, 1001]}))
    assert warnings(tmp_path, LLAMA | {"eos_token_id": 999}, {}) == [
        "generation_config.json: eos_token_id 1000, 1001 is not among the 1000 tokens of the model (vocab_size), so it "
        "ends no answer."
    ]


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_ends_that_are_no_ids_are_refused_with_their_file(tmp_path: Path, file: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path = tmp_path / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": "2"}))
    with pytest.raises(ConfigError, match=f"^{file}: eos_token_id must be a token id or a list of them, not '2'"):
        ModelConfig.from_path(str(tmp_path))
