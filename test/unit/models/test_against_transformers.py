"""Each family's logits equal those of transformers on a small random checkpoint, however a prompt is cut into steps."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.forward_batches import PageRows
from fixtures.tiny_checkpoints import FAMILIES, YARN, make_checkpoint
from fixtures.transformers_pair import (
    SCENARIOS,
    Pair,
    Scenario,
    check_scenario,
    decode,
    load_pair,
    logits_by_transformers,
    pair_of,
    run,
)
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.weight_update import WeightUpdate
from mysglang.srt.utils.checkpoint_files import stored_tensors

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 1.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i / 2 for i in range(8)],
}
FEWER_FACTORS = {name: LONGROPE[name][:4] for name in ("short_factor", "long_factor")}  # type: ignore[index]

# Few layers: its scores are large, and tokens that went to other experts in bfloat16 show in all behind them.
GEMMA4_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 9,
    "top_k_experts": 3,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
OWN_HEADS = {0: {"head_dim": 16, "num_key_value_heads": 6}, 1: {"head_dim": 64}, 2: {"head_dim": 64}}
# What distinguishes the variants of a family beyond its usual sizes.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows on some layers, tied": (
        "qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "gemma2, tied": ("gemma2", {"tie_word_embeddings": True}),
    "gemma2 without windows and caps": (
        "gemma2",
        {"layer_types": ["full_attention"] * 3, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe with a dense layer and a window": (
        "qwen3_moe",
        {"mlp_only_layers": [1], "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 20},
    ),
    "gemma3": ("gemma3", {}),
    "gemma3, where a cap of scores has no effect": ("gemma3", {"attn_logit_softcapping": 0.5}),
    "gemma4": ("gemma4", {}),
    "gemma4 with projected values, tied": ("gemma4", {"attention_k_eq_v": False, "tie_word_embeddings": True}),
    "gemma4 with heads of its own in a layer with the window": ("gemma4", {"per_layer_config": OWN_HEADS}),
    "gemma4 with experts": ("gemma4", GEMMA4_EXPERTS),
    "gemma4_e": ("gemma4_e", {}),
    "gemma3n": ("gemma3n", {}),
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {"mlp_only_layers": [1]}),
    "qwen2_moe with windows": ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 20}),
    "phi3 with a short context": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256}),
    "phi3 with a long one, a window, heads turned in part": (
        "phi3",
        {
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.5, **FEWER_FACTORS},
            "original_max_position_embeddings": 4,
            "sliding_window": 20,
        },
    ),
    "gpt_oss": ("gpt_oss", {}),
    "granite_moe, tied": ("granite_moe", {"tie_word_embeddings": True}),
    "granite_moe_shared": ("granite_moe_shared", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "hunyuan": ("hunyuan", {}),
    "hunyuan_moe": ("hunyuan_moe", {}),
    "minimax_m2": ("minimax_m2", {}),
    "dots1": ("dots1", {}),
    "phimoe, tied": ("phimoe", {"tie_word_embeddings": True}),
    "vaultgemma": ("vaultgemma", {}),
    "llama4": ("llama4", {}),
    "llama4 with heads that are stretched": ("llama4", {"rope_parameters": YARN}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", {}),
    "granite, tied": ("granite", {"tie_word_embeddings": True}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "olmoe": ("olmoe", {}),
    "exaone4": ("exaone4", {}),
    "exaone4 without a window": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "ernie4_5 with biases": ("ernie4_5", {"use_bias": True}),
    "smollm3": ("smollm3", {}),
    "seed_oss": ("seed_oss", {}),
    "cohere, tied": ("cohere", {}),
    "cohere2": ("cohere2", {"tie_word_embeddings": False}),
    "gpt2": ("gpt2", {}),
    "gptj": ("gptj", {}),
    "gptj, tied, with the usual inner size": ("gptj", {"tie_word_embeddings": True, "n_inner": None}),
    "gpt_neo": ("gpt_neo", {}),
    "gpt_neo, untied, with the usual inner size": (
        "gpt_neo",
        {
            "tie_word_embeddings": False,
            "intermediate_size": None,
            "attention_types": [[["global", "local", "local"], 1]],
        },
    ),
    "gpt2 with scores scaled by layer, untied": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True, "n_inner": None, "tie_word_embeddings": False},
    ),
    "starcoder2": ("starcoder2", {}),
    "stablelm": ("stablelm", {}),
    "stablelm, attention and MLP side by side": ("stablelm", {"use_parallel_residual": True}),
    "nemotron": ("nemotron", {}),
    "arcee": ("arcee", {}),
    "helium": ("helium", {}),
    "gemma, tied": ("gemma", {"tie_word_embeddings": True, "attention_bias": True}),
    "glm": ("glm", {}),
    "phi": ("phi", {"num_key_value_heads": None}),
    "ministral3": ("ministral3", {}),
    "baichuan": ("baichuan", {}),
    "falcon": ("falcon", {}),
    "falcon, one key-value head, tied": (
        "falcon",
        {"new_decoder_architecture": False, "tie_word_embeddings": True, "bias": True, "ffn_hidden_size": 72},
    ),
    "falcon, one norm, not side by side": (
        "falcon",
        {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "num_kv_heads": None},
    ),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next that ends with attention, a dense layer": (
        "qwen3_next",
        {"layer_types": ["linear_attention"] * 2 + ["full_attention"], "mlp_only_layers": [1], "attention_bias": True},
    ),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "qwen3_5_moe, where a key of another family has no effect": ("qwen3_5_moe", {"norm_topk_prob": False}),
    "bamba": ("bamba", {}),
    "bamba, heads turned whole": (
        "bamba",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
    ),
    "granite_moe_hybrid": ("granite_moe_hybrid", {}),
    "granite_moe_hybrid, turned, without experts": (
        "granite_moe_hybrid",
        {"num_local_experts": 0, "position_embedding_type": "rope", "tie_word_embeddings": True},
    ),
    "falcon_h1": ("falcon_h1", {}),
    "falcon_h1 with a norm behind mamba": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_proj_bias": True, "projectors_bias": True, "attention_bias": True},
    ),
    "nemotron_h": ("nemotron_h", {}),
    "nemotron_h without experts": (
        "nemotron_h",
        {"layers_block_type": ["mlp", "linear_attention", "full_attention", "mlp"]},
    ),
    "nemotron_h with narrow experts and biases": (
        "nemotron_h",
        {"moe_latent_size": 48, "mlp_bias": True, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "kimi_linear": ("kimi_linear", {}),
    "olmo_hybrid": ("olmo_hybrid", {}),
    "olmo_hybrid, turned, strengths below 1": (
        "olmo_hybrid",
        {
            "layer_types": None,
            "linear_allow_neg_eigval": False,
            "linear_key_head_dim": None,
            "linear_value_head_dim": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            "tie_word_embeddings": True,
        },
    ),
    "minimax": ("minimax", {}),
    "jamba": ("jamba", {}),
    "jamba without experts, with biases": ("jamba", {"num_experts": 1, "mamba_proj_bias": True}),
    # With the seeds of these, errors in bfloat16 are well below their bounds.
    "mamba": ("mamba", {"seed": 2}),
    "mamba with biases, tied": (
        "mamba",
        {"use_bias": True, "tie_word_embeddings": True, "time_step_rank": "auto", "seed": 2},
    ),
    "falcon_mamba": (
        "falcon_mamba",
        {"use_conv_bias": False, "mixer_rms_eps": 1e-2, "expand": 16, "intermediate_size": 168},
    ),
    "mamba2": ("mamba2", {"seed": 3}),
    "mamba2 with biases, tied": ("mamba2", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    "zamba2": ("zamba2", {"seed": 3}),
    "zamba2 with one block, without adapters of attention": (
        "zamba2",
        {
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
            "num_hidden_layers": 3,
            "num_mem_blocks": 1,
            "num_key_value_heads": 2,
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
            "add_bias_linear": True,
            "hidden_act": "silu",
            "time_step_min": 0.6,  # more than many of the steps
            "seed": 4,
        },
    ),
    "lfm2": ("lfm2", {"conv_bias": True}),
    "lfm2_moe": ("lfm2_moe", {}),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2, lite": (
        "deepseek_v2",
        {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "rope_parameters": None},
    ),
    "deepseek_v2 with biases, tied": (
        "deepseek_v2",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "deepseek_v2 with biases, direct queries": ("deepseek_v2", {"attention_bias": True, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {}),
    "glm4_moe_lite": ("glm4_moe_lite", {}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "deepseek_v3, halves turned, no groups": (
        "deepseek_v3",
        {
            "rope_interleave": False,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "seed": 1,
        },
    ),
}


WITH_OTHER_NAMES = (
    "glm_moe_dsa",
    *(
        "qwen3_next",
        "qwen3_5_moe",
        "granite_moe_hybrid",
        "falcon_h1",
        "nemotron_h",
        "lfm2_moe",
        "phi",
        "kimi_linear",
        "jamba",
        "falcon_mamba",
        "mamba2",
        "minimax",
        "zamba2",
    ),
    *("gpt_oss", "granite_moe_shared", "ernie4_5_moe", "minimax_m2", "llama4", "hunyuan_moe", "falcon"),
    *("gemma3n", "gemma4_e"),
)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, overrides = VARIANTS[request.param]
    return load_pair(family, tmp_path_factory.mktemp("checkpoint"), torch.float32, **overrides)


# Pages are the attention's, which all families share: each scenario with one size, and half of them with all positions.
@pytest.mark.parametrize(
    ("scenario", "page_size", "last_only"),
    list(zip(SCENARIOS, (1, 16, 16, 1), (False, True, False, True), strict=True)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_logits_in_float32(pair: Pair, scenario: Scenario, page_size: int, last_only: bool) -> None:
    check_scenario(pair, scenario, page_size, last_only=last_only)


def gemma3_with_a_tower(**more: Any) -> transformers.PretrainedConfig:
    """More layers in the tower than the decoder has, and of other sizes."""
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}
    sizes = {**tower, "image_size": 28, "patch_size": 14}
    text = FAMILIES["gemma3"](tie_word_embeddings=True)
    return transformers.Gemma3Config(text_config=text, vision_config=sizes, image_token_index=0, **more)


def gemma4_with_a_tower(**more: Any) -> transformers.PretrainedConfig:
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}
    sizes = {**tower, "num_key_value_heads": 2, "head_dim": 8}
    text = FAMILIES["gemma4"](tie_word_embeddings=True)
    return transformers.Gemma4Config(text_config=text, vision_config=sizes, audio_config=None, **more)


def qwen3_5_moe_with_a_tower(**more: Any) -> transformers.PretrainedConfig:
    tower = {"hidden_size": 16, "intermediate_size": 16, "depth": 5, "num_heads": 2, "num_position_embeddings": 16}
    text = FAMILIES["qwen3_5_moe"]().to_dict()
    sizes = {**tower, "out_hidden_size": text["hidden_size"]}
    return transformers.Qwen3_5MoeConfig(text_config=text, vision_config=sizes, image_token_id=0, **more)


def ministral3_with_a_tower(**more: Any) -> transformers.PretrainedConfig:
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}
    return transformers.Mistral3Config(
        text_config=FAMILIES["ministral3"]().to_dict(),
        vision_config={**tower, "image_size": 28, "patch_size": 14, "model_type": "pixtral"},
        image_token_index=0,
        tie_word_embeddings=False,
        **more,
    )


@pytest.mark.parametrize(
    "config", [gemma3_with_a_tower, gemma4_with_a_tower, qwen3_5_moe_with_a_tower, ministral3_with_a_tower]
)
def test_a_decoder_inside_of_a_larger_model(
    config: Callable[..., transformers.PretrainedConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tower for pictures: text is answered, and the tower is not loaded."""
    monkeypatch.setitem(FAMILIES, "with a tower", config)
    pair = load_pair("with a tower", tmp_path, torch.float32)
    assert ModelConfig.from_path(str(tmp_path)).inside == "language_model"
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)
    check_checkpoint(ModelConfig.from_path(str(tmp_path)), stored_tensors(tmp_path))


def test_published_gemma3n(tmp_path: Path) -> None:
    """Beside towers. Layers that share keys have unread tensors, and the table for layers' inputs lacks the last
    tokens, which have the row of token 0.
    """
    theirs, known = make_checkpoint("gemma3n", tmp_path), 200
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    with torch.no_grad():
        table = theirs.model.embed_tokens_per_layer.weight
        table[known:] = table[0]
    tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in load_file(path).items()}
    inputs = "model.language_model.embed_tokens_per_layer.weight"
    tensors[inputs] = tensors[inputs][:known].contiguous()
    for name, tensor in list(tensors.items()):
        if "layers.2.self_attn" in name and any(part in name for part in ("k_proj", "v_proj", "k_norm")):
            tensors |= {name.replace("layers.2", f"layers.{layer}"): tensor.clone() for layer in (3, 4)}
    save_file({**tensors, "model.vision_tower.patch": torch.ones(3)}, path)
    text = json.loads(config.read_text()) | {"vocab_size_per_layer_input": known}
    config.write_text(json.dumps({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}))
    pair = pair_of(theirs, tmp_path, torch.float32)
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)
    check_checkpoint(ModelConfig.from_path(str(tmp_path)), stored_tensors(tmp_path))


@pytest.mark.parametrize("family", WITH_OTHER_NAMES)
def test_tensors_have_the_names_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    """Also where a family calls them otherwise than most, and where a parameter of ours is one of several parts."""
    pair = load_pair(family, tmp_path, torch.float32, slots=())
    prefixes = ModelConfig.from_path(str(tmp_path)).weight_prefixes
    given = [name for name in load_file(tmp_path / "model.safetensors") if not pair.ours.ignores(name)]
    named = {next((name.removeprefix(each) for each in prefixes if name.startswith(each)), name) for name in given}
    update = WeightUpdate(pair.ours)
    told = dict(update.tensors())
    assert told.keys() == named
    for name, tensor in told.items():
        assert torch.equal(update.read(name), tensor)


def test_names_of_old_gpt2_checkpoints(tmp_path: Path) -> None:
    """They have no prefix, and the causal masks as tensors."""
    theirs = make_checkpoint("gpt2", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.tensor(-1e4)}, path)
    check_scenario(pair_of(theirs, tmp_path, torch.float32), SCENARIOS[0], page_size=16)
    check_checkpoint(ModelConfig.from_path(str(tmp_path)), stored_tensors(tmp_path))


@pytest.mark.parametrize(("family", "module"), [("gptj", "attn"), ("gpt_neo", "attn.attention")])
def test_masks_in_old_checkpoints(family: str, module: str, tmp_path: Path) -> None:
    """Published checkpoints have the causal masks as tensors, which are not read."""
    theirs = make_checkpoint(family, tmp_path)
    path = tmp_path / "model.safetensors"
    masks = {"bias": torch.ones(1, 1, 8, 8), "masked_bias": torch.tensor(-1e9)}
    save_file({**load_file(path), **{f"transformer.h.1.{module}.{name}": mask for name, mask in masks.items()}}, path)
    check_scenario(pair_of(theirs, tmp_path, torch.float32), SCENARIOS[0], page_size=16)
    check_checkpoint(ModelConfig.from_path(str(tmp_path)), stored_tensors(tmp_path))


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """Published checkpoints of Qwen3.5 store them as [experts, …]: gates above ups, and downs."""
    pair = load_pair("qwen3_5_moe", tmp_path, torch.float32)
    path = tmp_path / "model.safetensors"
    tensors, experts = load_file(path), range(9)
    for layer in range(3):
        at = f"model.layers.{layer}.mlp.experts"
        apart = [[tensors.pop(f"{at}.{i}.{part}_proj.weight") for i in experts] for part in ("gate", "up", "down")]
        gates, ups, downs = map(torch.stack, apart)
        tensors |= {f"{at}.gate_up_proj": torch.cat((gates, ups), dim=1), f"{at}.down_proj": downs}
    save_file(tensors, path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_checkpoint(config, stored_tensors(tmp_path))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
    check_scenario(replace(pair, ours=ours), SCENARIOS[0], page_size=16)


def test_convolutions_of_their_own(tmp_path: Path) -> None:
    """Files of OLMo Hybrid have one each for queries, keys and values, and may have other names for norms."""
    pair = load_pair("olmo_hybrid", tmp_path, torch.float32)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for at in ("model.layers.0", "model.layers.2"):
        convolutions = tensors.pop(f"{at}.linear_attn.conv1d.weight").split((32, 32, 144))
        for each, tensor in zip("qkv", convolutions, strict=True):
            tensors[f"{at}.linear_attn.{each}_conv1d.weight"] = tensor.clone()
        tensors[f"{at}.attention_layer_norm.weight"] = tensors.pop(f"{at}.input_layernorm.weight")
        tensors[f"{at}.feedforward_layer_norm.weight"] = tensors.pop(f"{at}.post_attention_layernorm.weight")
    save_file(tensors, path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_checkpoint(config, stored_tensors(tmp_path))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
    check_scenario(replace(pair, ours=ours), SCENARIOS[0], page_size=16)
    told = dict(WeightUpdate(ours).tensors())
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        full = f"linear_attn.{name}.weight"
        assert torch.equal(told[f"layers.2.{full}"], tensors[f"model.layers.2.{full}"])


FEWER_CHOOSE: dict[str, Any] = {"index_topk": 40, "seed": 1}
STEADIER: dict[str, dict[str, Any]] = {
    "qwen3_next": {"mlp_only_layers": [0, 1, 2]},
    "kimi_linear": {"mlp_layer_types": ["dense"] * 3},
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), FEWER_CHOOSE),
}
"""Delta nets without experts: what a token that went to other experts leaves in a state shows in all tokens behind it.
So does a token that was chosen in the place of another, so few queries have to choose.
"""


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_in_bfloat16(variant: str, tmp_path: Path) -> None:
    """Both worlds round, in different places: as far from the truth as transformers itself, or nearer.

    For a family with experts, the bounds are those of the lower quarter of all positions. In both worlds rounding turns
    near ties of a router, which sends a token to other experts than in float32. The keys of that token then disturb all
    tokens behind it. Where that happens depends on the order of sums, and so on the processor.
    """
    family, overrides = VARIANTS[variant]
    overrides = {**overrides, **STEADIER.get(family, {})}
    pages = PageRows(page_size=16)
    steps = decode(pages)
    slots = {row.slot: None for rows in steps for row in rows}
    pair = load_pair(family, tmp_path, torch.bfloat16, slots=slots, **overrides)
    truth = logits_by_transformers(pair.theirs.float(), slots)
    worlds: list[tuple[Tensor, Tensor, Tensor]] = []
    for slot, by_position in run(pair.ours, pages, steps).items():
        places = list(by_position)
        worlds.append((torch.stack(list(by_position.values())), pair.expected[slot][places], truth[slot][places]))
    judged = relative_error
    if pair.ours.plan.mixtures:
        ours, theirs, truths = map(torch.cat, zip(*worlds, strict=True))
        judged, worlds = quarter_error, [(ours, theirs, truths)]
    for found, expected, truth in worlds:
        assert judged(found, truth) < max(1.25 * judged(expected, truth), 0.01)
        assert judged(found, truth) < 0.05


def quarter_error(found: Tensor, expected: Tensor) -> float:
    """Error that a quarter of the positions do not exceed."""
    errors = sorted(relative_error(*both) for both in zip(found, expected, strict=True))
    return errors[len(errors) // 4]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
