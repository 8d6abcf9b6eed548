"""Families that transformers does not have, whose layers are Llama's under other keys and names: the answers are those
of the Llama with the same numbers.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.internlm2_names import as_internlm2
from fixtures.tiny_checkpoints import SIZES, save_random
from fixtures.transformers_pair import SCENARIOS, Pair, check_scenario, load_pair, pair_of
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.utils.checkpoint_files import stored_tensors


def as_baichuan(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All queries, all keys and all values are one matrix."""
    made = {name: tensor for name, tensor in tensors.items() if not any(f"{each}_proj" in name for each in "qkv")}
    for name in tensors:
        before, query, after = name.partition("self_attn.q_proj")
        if query:
            parts = [tensors[f"{before}self_attn.{each}_proj{after}"] for each in "qkv"]
            made[f"{before}self_attn.W_pack{after}"] = torch.cat(parts)
    return made


@pytest.mark.parametrize(
    ("architecture", "biases", "keys", "convert"),
    [
        ("InternLM2ForCausalLM", {"attention_bias": True}, {"bias": True}, as_internlm2),
        (
            "InternLM3ForCausalLM",
            {"attention_bias": True, "mlp_bias": True},
            {"bias": True, "qkv_bias": True},
            dict,
        ),
        ("BaiChuanForCausalLM", {}, {}, as_baichuan),
    ],
)
def test_the_answers_are_those_of_llama(
    architecture: str,
    biases: dict[str, bool],
    keys: dict[str, bool],
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    tmp_path: Path,
) -> None:
    pair = load_pair("llama", tmp_path, torch.float32, **biases)
    written = json.loads((tmp_path / "config.json").read_text())
    written |= {"architectures": [architecture], "auto_map": {"AutoModel": "modeling.Model"}, **keys}
    (tmp_path / "config.json").write_text(json.dumps(written))
    save_file(convert(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors")
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_checkpoint(config, stored_tensors(tmp_path))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
    assert isinstance(ours, CausalLM)
    for scenario in SCENARIOS:
        check_scenario(Pair(pair.theirs, ours, pair.expected), scenario, page_size=16)


def test_mimo_is_a_qwen2_that_brings_layers_for_drafts(tmp_path: Path) -> None:
    pair = load_pair("qwen2", tmp_path, torch.float32)
    written = json.loads((tmp_path / "config.json").read_text())
    named = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "auto_map": {"AutoModel": "modeling.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(written | named | {"num_nextn_predict_layers": 1}))
    tensors = load_file(tmp_path / "model.safetensors")
    of_draft = {name.replace(".layers.0.", ".mtp_layers.0."): t.clone() for name, t in tensors.items() if ".0." in name}
    save_file(tensors | of_draft, tmp_path / "model.safetensors")
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_checkpoint(config, stored_tensors(tmp_path))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
    assert isinstance(ours, CausalLM) and any("mtp_layers" in name for name in of_draft)
    for scenario in SCENARIOS:
        check_scenario(Pair(pair.theirs, ours, pair.expected), scenario, page_size=16)


@pytest.mark.parametrize("keys", [{"model_max_length": 4096}, {"max_position_embeddings": 4096}])
def test_baichuan_with_alibi_is_refused(keys: dict[str, int], tmp_path: Path) -> None:
    sizes = {**SIZES, "hidden_size": 5120, "num_attention_heads": 40, "architectures": ["BaichuanForCausalLM"]}
    del sizes["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(sizes | keys))
    with pytest.raises(ConfigError, match=r"Baichuan 13B, whose positions are a bias of the scores \(ALiBi\)"):
        ModelConfig.from_path(str(tmp_path))


def test_a_mistral_with_types_of_layers_is_a_ministral(tmp_path: Path) -> None:
    """Ministral 8B, as published: transformers reads it as its Ministral, too."""
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = transformers.MinistralConfig(**SIZES, head_dim=16, layer_types=types, sliding_window=20)
    theirs = save_random(config, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert type(transformers.AutoConfig.from_pretrained(tmp_path)) is transformers.MinistralConfig
    pair = pair_of(theirs, tmp_path, torch.float32)
    assert [spec.window for spec in pair.ours.attention_specs()] == [None, 20, None]
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)
    (tmp_path / "config.json").write_text(json.dumps(written | {"layer_types": types[:2]}))
    with pytest.raises(ConfigError, match="2 layer_types for 3 layers"):
        ModelConfig.from_path(str(tmp_path))
