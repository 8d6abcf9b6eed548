"""How a model pools, out of config.json and the files of sentence-transformers; and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.configs import architectures
from mysglang.srt.configs.architectures import ARCHITECTURES, Architecture
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def read(folder: Path, architecture: str, *, is_embedding: bool = False, **config: Any) -> ModelConfig:
    write(folder, "config.json", {**SIZES, "architectures": [architecture], **config})
    return ModelConfig.from_path(str(folder), is_embedding=is_embedding)


def modules(folder: Path, *names: str, **pooling: Any) -> None:
    listed = [{"type": f"sentence_transformers.models.{name}", "path": f"{i}_{name}"} for i, name in enumerate(names)]
    write(folder, "modules.json", listed)
    if pooling:
        write(folder, f"{names.index('Pooling')}_Pooling/config.json", pooling)


def test_a_model_that_generates_pools_only_if_asked(tmp_path: Path) -> None:
    assert read(tmp_path, "LlamaForCausalLM").pooling is None
    asked = read(tmp_path, "LlamaForCausalLM", is_embedding=True)
    assert asked.architecture == "LlamaModel" and asked.pooling is not None
    assert (asked.pooling.task, asked.pooling.mode, asked.pooling.normalize) == ("embed", "last", True)
    assert not asked.needs_whole_prompts


def test_what_cannot_is_not_asked_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"OtherForCausalLM": Architecture("causal_lm:CausalLM", LlamaConfig)}
    monkeypatch.setattr(architectures, "ARCHITECTURES", {**ARCHITECTURES, **other})
    assert read(tmp_path, "OtherForCausalLM").pooling is None
    with pytest.raises(ConfigError, match="OtherForCausalLM cannot make vectors here"):
        read(tmp_path, "OtherForCausalLM", is_embedding=True)


def test_or_if_sentence_transformers_says_so(tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    config = read(tmp_path, "Qwen3ForCausalLM", head_dim=16)
    assert config.architecture == "Qwen3Model" and config.pooling is not None
    assert (config.pooling.mode, config.pooling.normalize, config.pooling.width) == ("mean", False, 32)
    assert config.needs_whole_prompts


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ],
)
def test_modes(pooling: dict[str, Any], mode: str, tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "Pooling", "Normalize", **pooling)
    config = read(tmp_path, "BertModel").pooling
    assert config is not None and config.mode == mode and config.normalize


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode_median_tokens": True},
        {"pooling_mode": "median"},
        {"pooling_mode_mean_tokens": False},
    ],
)
def test_other_modes_are_refused(pooling: dict[str, Any], tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "Pooling", **pooling)
    with pytest.raises(ConfigError, match="is not supported; one of cls, lasttoken, mean, max, "):
        read(tmp_path, "BertModel")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("Transformer", "Pooling", "LSTM"), "the module LSTM is not supported"),
        (("Transformer", "Pooling", "Normalize", "Dense"), "not supported in this order: Transformer, Pooling, Dense"),
        (("Transformer", "Dense"), "not supported in this order"),
        (("Transformer", "Pooling", "Pooling"), "the module Pooling occurs more than once"),
        (("Transformer", "Pooling", *["Dense"] * 17), "the module Dense occurs 17 times, and at most 16"),
    ],
)
def test_other_modules_are_refused(names: tuple[str, ...], words: str, tmp_path: Path) -> None:
    modules(tmp_path, *names)
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, "BertModel")


def dense(folder: Path, *configs: dict[str, Any]) -> None:
    modules(folder, "Transformer", "Pooling", *["Dense"] * len(configs), "Normalize", pooling_mode="mean")
    for i, config in enumerate(configs, start=2):
        write(folder, f"{i}_Dense/config.json", config)


def test_dense_modules(tmp_path: Path) -> None:
    """The last one decides how long vectors are, and so which shorter lengths there are."""
    inner = {"in_features": 32, "out_features": 48, "bias": False, "activation_function": "torch.nn.Identity"}
    dense(tmp_path, inner, {"in_features": 48, "out_features": 40})
    pooling = read(tmp_path, "BertModel", matryoshka_dimensions=[40]).pooling
    assert pooling is not None and pooling.width == 40 and pooling.normalize and pooling.dimensions == (40,)
    assert [(each.path, each.bias, each.activation) for each in pooling.dense] == [
        ("2_Dense", False, "Identity"),
        ("3_Dense", True, "Tanh"),
    ]
    with pytest.raises(ConfigError, match="matryoshka_dimensions 48 is more than out_features of the last Dense 40"):
        read(tmp_path, "BertModel", matryoshka_dimensions=[48])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"activation_function": "os.system"}, "activation_function os.system is not supported; supported are torch"),
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "Mish is not supported"),
        ({"in_features": 31}, "in_features is 31, and the module before gives 32 numbers"),
        ({"out_features": 1 << 40}, "out_features"),
        ({"use_residual": True}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"scale": 2}, "scale"),
    ],
)
def test_faults_of_a_dense_module(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    dense(tmp_path, {"in_features": 32, "out_features": 32} | change)
    with pytest.raises(ConfigError, match=f"2_Dense/config.json.*{words}"):
        read(tmp_path, "BertModel")


GEMMA: dict[str, Any] = {"head_dim": 16, "sliding_window": 8, "use_bidirectional_attention": True}


def test_attention_in_both_directions_is_for_vectors(tmp_path: Path) -> None:
    config = read(tmp_path, "Gemma3TextModel", **GEMMA)
    assert config.needs_whole_prompts and config.plan.bidirectional
    assert config.plan.windows == (5,) and config.plan.attentions[0].kept_size == 0
    assert read(tmp_path, "Gemma3ForCausalLM", is_embedding=True, **GEMMA).plan.bidirectional
    with pytest.raises(ConfigError, match="use_bidirectional_attention is set, so the model generates no text"):
        read(tmp_path, "Gemma3ForCausalLM", **GEMMA)
    with pytest.raises(ConfigError, match="attention is causal here only"):
        read(tmp_path, "Gemma2Model", **GEMMA)


@pytest.mark.parametrize("architecture", ["Qwen2Model", "Qwen2ForCausalLM", "LlamaForSequenceClassification"])
def test_a_decoder_that_is_not_causal(architecture: str, tmp_path: Path) -> None:
    """transformers has no causal mask then. The key is in files of some models that make vectors."""
    for value in (False, None):
        with pytest.raises(ConfigError, match=f"is_causal is {json.dumps(value)}, and attention is causal here only"):
            read(tmp_path, architecture, is_causal=value)
    assert not read(tmp_path, architecture, is_causal=True).plan.bidirectional
    assert read(tmp_path, "Gemma3TextModel", **GEMMA, is_causal=False).plan.bidirectional


def test_lengths(tmp_path: Path) -> None:
    """The length that the model was trained with, unless more is asked for; never more than it has positions."""
    assert read(tmp_path, "BertModel").context_len == 64
    assert read(tmp_path, "XLMRobertaModel", pad_token_id=1).context_len == 62
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 24})
    assert read(tmp_path, "BertModel").context_len == 24
    assert ModelConfig.from_path(str(tmp_path), context_length=40).context_len == 40
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 500})
    assert read(tmp_path, "BertModel").context_len == 64
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": "long"})
    with pytest.raises(ConfigError, match="max_seq_length must be a positive number"):
        read(tmp_path, "BertModel")


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [({}, None), ({"is_matryoshka": True}, ()), ({"matryoshka_dimensions": [16, 8]}, (8, 16))],
)
def test_dimensions(config: dict[str, Any], dimensions: tuple[int, ...] | None, tmp_path: Path) -> None:
    pooling = read(tmp_path, "BertModel", **config).pooling
    assert pooling is not None and pooling.dimensions == dimensions


@pytest.mark.parametrize(
    ("architecture", "config", "labels"),
    [
        ("BertForSequenceClassification", {}, ("LABEL_0", "LABEL_1")),
        ("BertForSequenceClassification", {"num_labels": 1}, ("LABEL_0",)),
        ("LlamaForSequenceClassification", {"id2label": {"1": "bad", "0": "good"}}, ("good", "bad")),
        ("Qwen2ForRewardModel", {}, ("LABEL_0",)),
    ],
)
def test_labels(architecture: str, config: dict[str, Any], labels: tuple[str, ...], tmp_path: Path) -> None:
    pooling = read(tmp_path, architecture, **config).pooling
    assert pooling is not None and (pooling.task, pooling.labels, pooling.width) == ("classify", labels, len(labels))
    assert pooling.pairs == architecture.startswith("Bert")


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 3}, "identity"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        (
            {"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "sigmoid",
        ),
    ],
)
def test_activations(config: dict[str, Any], activation: str, tmp_path: Path) -> None:
    pooling = read(tmp_path, "BertForSequenceClassification", **config).pooling
    assert pooling is not None and pooling.activation == activation


@pytest.mark.parametrize(
    ("config", "likelihood"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, "softmax"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 3, "problem_type": "regression"}, "identity"),
        ({"num_labels": 1, "problem_type": "regression"}, "identity"),
    ],
)
@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "Qwen3ForSequenceClassification"])
def test_probabilities(architecture: str, config: dict[str, Any], likelihood: str, tmp_path: Path) -> None:
    pooling = read(tmp_path, architecture, **config).pooling
    assert pooling is not None and pooling.likelihood == likelihood


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"problem_type": "ranking"}, "problem_type 'ranking' is not supported"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must name the labels 0, 1"),
        ({"num_labels": 0}, "num_labels must be a number from 1 to 131072"),
        ({"sbert_ce_default_activation_function": "x.Tanh"}, "activation x.Tanh is not supported"),
    ],
)
def test_faults_of_a_classifier(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, "BertForSequenceClassification", **config)


@pytest.mark.promise(49)
@pytest.mark.parametrize("path", ["../other", "/etc", "1_Pooling/../../other"])
def test_a_module_outside_the_models_directory(path: str, tmp_path: Path) -> None:
    write(tmp_path, "modules.json", [{"type": "sentence_transformers.models.Pooling", "path": path}])
    with pytest.raises(ConfigError, match="leads out of the model's directory"):
        read(tmp_path, "BertModel")


@pytest.mark.promise(49)
@pytest.mark.parametrize("name", ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"])
def test_a_device_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "Pooling", pooling_mode="mean")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=f"{name} is a device"):
        read(tmp_path, "BertModel")


@pytest.mark.promise(49)
def test_sizes_without_bounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_labels must be a number from 1 to 131072"):
        read(tmp_path, "BertForSequenceClassification", num_labels=10**9)
    with pytest.raises(ConfigError, match="matryoshka_dimensions 33 is more than hidden_size 32"):
        read(tmp_path, "BertModel", matryoshka_dimensions=[16, 33])
