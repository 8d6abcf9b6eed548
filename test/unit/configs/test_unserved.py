"""The error message for a config.json of a model that is not served."""

import json
from pathlib import Path

import pytest

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.architectures import ARCHITECTURES, find_architecture
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.unserved import NEVER, why_unserved
from mysglang.srt.errors import ConfigError
from mysglang.srt.models.transformers_backend.examine import examine


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "it is an encoder with a decoder, and"),
        ("Qwen3VLForConditionalGeneration", {"vision_config": {"depth": 2}}, "it reads pictures (vision_config)"),
        ("ViTForImageClassification", {"image_size": 224}, "it reads pictures"),
        ("Wav2Vec2ForCTC", {}, "it reads sound"),
        ("ViTModel", {"num_channels": 3}, "it reads pictures (num_channels)"),
        ("DebertaForTokenClassification", {}, "it labels single tokens"),
        ("AlbertForSequenceClassification", {}, "no such architecture is known here"),
        ("Qwen9ForCausalLM", {}, "no such architecture is known here"),
        ("RwkvForCausalLM", {}, "its layers keep a state for each request"),
    ],
)
def test_the_kind_of_model_is_the_reason(name: str, keys: dict[str, object], says: str) -> None:
    said = why_unserved([name], {"is_encoder_decoder": False, **keys}, ARCHITECTURES)
    assert said.startswith(f"architecture {name} is not supported: {says}")
    assert "meant?" not in said and "override" not in said


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LlamaForCasualLM", "LlamaForCausalLM"),
        ("QWen2ForCausalLM", "Qwen2ForCausalLM"),
        ("MistralForCausalLm", "MistralForCausalLM"),
        ("Qwen3ForRewardsModel", "Qwen3ForRewardModel"),
    ],
)
def test_a_slip_of_the_pen_is_seen(name: str, meant: str) -> None:
    assert f"Is {meant} meant?" in why_unserved([name], {}, ARCHITECTURES)


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_served_is_known_to_nobody(name: str) -> None:
    """No code of ours serves it, and transformers' code of it cannot run over our pages."""
    assert find_architecture(f"{name}ForCausalLM") is None
    served, _ = examine(f"{name}ForCausalLM")
    assert not served


def test_layers_without_their_head_are_offered() -> None:
    said = why_unserved(["BertForMaskedLM"], {}, ARCHITECTURES)
    assert "fills in masked tokens" in said and """'{"architectures": ["BertModel"]}'""" in said


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "mamba2", "kimi_linear", "nemotron_h", "minimax", "lfm2"])
def test_states_are_the_reason_before_a_missing_size(family: str, tmp_path: Path) -> None:
    """Files of these families lack sizes that transformers' code needs, and with them they would be refused too."""
    make_checkpoint(family, tmp_path)
    with pytest.raises(
        ConfigError, match=r"not served by transformers' code: its layers keep a state .* leave out --mod"
    ):
        ModelConfig.from_path(str(tmp_path), impl="transformers")
    assert ModelConfig.from_path(str(tmp_path)).architecture.endswith("ForCausalLM")


def test_a_size_that_is_missing_is_asked_for_where_it_is_the_reason(tmp_path: Path) -> None:
    make_checkpoint("olmo2", tmp_path)
    config = tmp_path / "config.json"
    keys = json.loads(config.read_text())
    del keys["max_position_embeddings"]
    config.write_text(json.dumps(keys))
    with pytest.raises(ConfigError, match=r"config\.json has no max_position_embeddings"):
        ModelConfig.from_path(str(tmp_path), impl="transformers")


def test_what_overflows_in_float16_does_so_in_other_code(tmp_path: Path) -> None:
    make_checkpoint("gemma2", tmp_path)
    assert ModelConfig.from_path(str(tmp_path), impl="transformers", dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(ConfigError, match="activations of this model overflow in float16"):
        ModelConfig.from_path(str(tmp_path), impl="transformers", dtype="float16")


def test_what_transformers_code_alone_computes_is_known(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "PersimmonForCausalLM"))
    with pytest.raises(ConfigError, match="--model-impl mysglang: no code of mysglang computes PersimmonForCausalLM"):
        ModelConfig.from_path(str(tmp_path), impl="mysglang")
