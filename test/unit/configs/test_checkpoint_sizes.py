"""Sizes of config.json beside those of the checkpoint's tensors and of a machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.pooling_checkpoints import save_encoder, set_config
from fixtures.tiny_checkpoints import FAMILIES, make_checkpoint
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint, check_context, check_memory, num_parameters
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.checkpoint_files import stored_tensors

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def check(folder: Path) -> None:
    check_checkpoint(ModelConfig.from_path(str(folder)), stored_tensors(folder))


def config(folder: Path, **values: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(TINY | values))
    return ModelConfig.from_path(str(folder))


ALWAYS_TIED = ("zamba2",)


@pytest.mark.parametrize(
    ("family", "tied"),
    [(family, tied) for family in FAMILIES for tied in (False, True) if tied or family not in ALWAYS_TIED],
)
def test_every_family_fits_itself(family: str, tied: bool, tmp_path: Path) -> None:
    model = make_checkpoint(family, tmp_path, tie_word_embeddings=tied)
    check(tmp_path)
    counted = num_parameters(ModelConfig.from_path(str(tmp_path)))
    assert counted == pytest.approx(model.num_parameters(), rel=0.02)


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_encoders_fit_themselves(family: str, tmp_path: Path) -> None:
    save_encoder(tmp_path, family)
    check(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 4096}, "num_hidden_layers is 4096, and the checkpoint holds 3 layers"),
        ({"vocab_size": 1 << 24}, "vocab_size makes 16777216, .*of model.safetensors.*: 251 in"),
        ({"hidden_size": 1 << 20, "head_dim": 16}, "hidden_size makes 1048576, .*: 96 in its place"),
        ({"intermediate_size": 1 << 22}, "intermediate_size makes 4194304, .*: 136 in its place"),
        ({"num_attention_heads": 16384, "head_dim": 16}, r"num_attention_heads \* head_dim makes 262144"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads \* head_dim makes 48"),
        ({"head_dim": 16384}, r"num_key_value_heads \* head_dim makes 32768"),
    ],
)
def test_a_size_that_is_not_the_checkpoints(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    set_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"config.json: {says}") as caught:
        check(tmp_path)
    assert len(caught.value.problems) == 1


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts": 1 << 14}, "num_experts makes 16384, and tensor model.layers.0.mlp.gate.weight .*: 9 in its"),
        ({"moe_intermediate_size": 63}, r"moe_intermediate_size makes 63, .*experts.\d.down_proj.weight .*: 64 in its"),
    ],
)
def test_sizes_of_experts(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    make_checkpoint("qwen3_moe", tmp_path)
    set_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"config.json: {says}"):
        check(tmp_path)


@pytest.mark.promise(49)
def test_experts_that_no_machine_holds(tmp_path: Path) -> None:
    """All of them count, however few a token goes to."""
    model = config(tmp_path, architectures=["Qwen3MoeForCausalLM"], moe_intermediate_size=1 << 14, num_experts=4096)
    with pytest.raises(ConfigError, match=r"take 48.0 GiB, and a GPU has 40.0 GiB .* moe_intermediate_size 16384"):
        check_memory(model, memory=40, num_ranks=1, place="a GPU")


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_position_embeddings": 1 << 30}, "max_position_embeddings makes 1073741824"),
        ({"type_vocab_size": 1 << 20}, "type_vocab_size makes 1048576"),
        ({"intermediate_size": 1 << 20}, "intermediate_size makes 1048576"),
    ],
)
def test_an_encoders_sizes(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    set_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"config.json: {says}"):
        check(tmp_path)


@pytest.mark.promise(49)
def test_tensors_that_are_left_out_prove_nothing(tmp_path: Path) -> None:
    """The tensor that would contradict intermediate_size is not in the checkpoint; the number of parameters is."""
    make_checkpoint("llama", tmp_path)
    model = ModelConfig.from_path(str(tmp_path), overrides={"intermediate_size": 1 << 22})
    kept = [tensor for tensor in stored_tensors(tmp_path) if "mlp" not in tensor.name]
    with pytest.raises(ConfigError, match=r"describes a model of \d+ parameters, and the checkpoint holds \d+"):
        check_checkpoint(model, kept)


@pytest.mark.promise(49)
def test_weights_that_no_machine_holds(tmp_path: Path) -> None:
    model = config(tmp_path, hidden_size=1 << 14, intermediate_size=1 << 16, num_hidden_layers=126)
    check_memory(model, memory=1024, num_ranks=1, place="this machine")
    with pytest.raises(ConfigError, match=r"take \d+\.\d GiB, and a GPU has 80.0 GiB \(126 layers, hidden_size 16384"):
        check_memory(model, memory=80, num_ranks=8, place="a GPU")
    check_memory(model, memory=140, num_ranks=8, place="a GPU")


@pytest.mark.promise(49)
def test_positions_that_no_machine_holds(tmp_path: Path) -> None:
    model = config(tmp_path, max_position_embeddings=1 << 31)
    with pytest.raises(ConfigError, match=r"2147483648 positions \(max_position_embeddings\).*--context-length"):
        check_context(model, memory=24)
    check_context(config(tmp_path, max_position_embeddings=1 << 20), memory=24)
