"""The files of published checkpoints: keys that their config.json has, and the sizes that result."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.checkpoint_sizes import num_parameters
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

LFM2_12B: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "vocab_size": 65536,
}
SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "attention_bias": False,
        "attn_scale": 0.1,
        "attn_temperature_tuning": 4,
        "floor_scale": 8192,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10485760,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "use_qk_norm": True,
        "vocab_size": 202048,
    },
    "vision_config": {},
}
MIMO_7B: dict[str, Any] = {
    "architectures": ["MiMoForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"},
    "attention_bias": True,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 640000,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vocab_size": 151680,
}


@pytest.mark.parametrize(
    ("keys", "billions"), [(LFM2_12B, 1.170), (SCOUT, 107.77), (MIMO_7B, 7.623)], ids=["LFM2", "Scout", "MiMo"]
)
def test_sizes(keys: dict[str, Any], billions: float, tmp_path: Path) -> None:
    """The numbers are those of the decoders alone, without layers that draft tokens and without a vision tower."""
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert num_parameters(ModelConfig.from_path(str(tmp_path))) / 1e9 == pytest.approx(billions, rel=0.001)


def quantized_beside(folder: Path, algorithm: str | None, **more: Any) -> ModelConfig:
    """Reads a checkpoint with the file that ModelOpt writes."""
    make_checkpoint("llama", folder)
    written = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm, **more}}
    (folder / "hf_quant_config.json").write_text(json.dumps(written))
    return ModelConfig.from_path(str(folder))


def test_quantization_in_a_file_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the checkpoint is quantized \(modelopt, NVFP4\), which is not supported"):
        quantized_beside(tmp_path, "NVFP4", group_size=16)


def test_only_the_cache_is_quantized_there(tmp_path: Path) -> None:
    assert quantized_beside(tmp_path, None, kv_cache_quant_algo="FP8").architecture == "LlamaForCausalLM"
