"""Reading a config.json in both spellings, and the message for each fault in it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.patience import PATIENCE_S
from fixtures.tiny_checkpoints import CLASSES, FAMILIES
from mysglang.srt.configs.architectures import ARCHITECTURES, DECODERS
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    GatedMlpPlan,
    MixturePlan,
)
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
GEMMA2 = LLAMA | {"architectures": ["Gemma2ForCausalLM"], "head_dim": 16}
MOE = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None, **options: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_path(str(folder), **options)


def attention(config: ModelConfig) -> AttentionPlan:
    """Attention of the first layer."""
    return config.plan.layers[0].attention


def rope(config: ModelConfig) -> dict[str, Any]:
    plan = attention(config).rope
    assert plan is not None
    return dict(plan.parameters)


def problem(folder: Path, config: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, config, **options)
    assert len(caught.value.problems) == 1 and "\n" not in str(caught.value)
    return str(caught.value)


class TestFacts:
    def test_defaults_of_an_old_llama(self, tmp_path: Path) -> None:
        config = read(tmp_path, LLAMA)
        plan = attention(config)
        assert (plan.num_kv_heads, plan.head_dim, config.context_len, config.dtype) == (4, 16, 2048, "bfloat16")
        assert config.plan.windows == (None, None)
        assert rope(config) == {"rope_type": "default", "rope_theta": 10000.0}
        assert config.eos_token_ids == () and config.generation_config == {}
        assert config.plan.layers[1].mlp == GatedMlpPlan(intermediate_size=128, activation="silu")
        assert not (config.plan.tied_embeddings or plan.bias or plan.output_bias)
        assert config.path == str(tmp_path)

    @pytest.mark.parametrize("family", CLASSES)
    def test_agrees_with_transformers(self, family: str, tmp_path: Path) -> None:
        """A file that names only the sizes means what it means with all the keys that transformers fills in."""
        written = FAMILIES[family](architectures=[type_name(family)]).to_dict()
        needed = {key: written[key] for key in LLAMA if key in written and key != "max_position_embeddings"}
        needed |= {"num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 12}
        needed |= WITHOUT_DEFAULT.get(family, {})
        heads = {
            "deepseek_v3": 128,
            "deepseek_v32": 128,
            "glm_moe_dsa": 64,
            "glm4_moe_lite": 20,
            "helium": 20,
        }  # as many as there are key-value heads by default
        needed["num_attention_heads"] = heads.get(family, 32)
        ours = read(tmp_path, needed)
        transformers.AutoConfig.for_model(**needed).save_pretrained(tmp_path)
        completed = ModelConfig.from_path(str(tmp_path))
        assert ours.plan == completed.plan and ours.context_len == completed.context_len

    @pytest.mark.parametrize(
        ("keys", "sparse"),
        [
            ({}, [0, 1, 2, 3]),
            ({"decoder_sparse_step": 2}, [1, 3]),
            ({"decoder_sparse_step": 2, "mlp_only_layers": [3, 9]}, [1]),
            ({"num_experts": 0}, []),
        ],
    )
    def test_layers_with_experts(self, keys: dict[str, Any], sparse: list[int], tmp_path: Path) -> None:
        layers = read(tmp_path, MOE | keys).plan.layers
        assert [index for index, layer in enumerate(layers) if isinstance(layer.mlp, MixturePlan)] == sparse

    @pytest.mark.parametrize(
        ("keys", "number"), [({"num_experts": 16}, 16), ({"num_local_experts": 12}, 12), ({}, 128)]
    )
    def test_the_number_of_experts_has_two_names(self, keys: dict[str, int], number: int, tmp_path: Path) -> None:
        (mlp,) = {layer.mlp for layer in read(tmp_path, MOE | keys).plan.layers}
        assert isinstance(mlp, MixturePlan) and mlp.experts == number and mlp.router.top_k == 8

    def test_fewer_experts_than_a_token_goes_to(self, tmp_path: Path) -> None:
        assert "8 experts (num_experts_per_tok), and a layer has 7" in problem(tmp_path, MOE | {"num_experts": 7})

    def test_a_text_model_that_names_few_keys(self, tmp_path: Path) -> None:
        """The file of Gemma 3 4B: beside a vision tower, without heads and vocabulary, in the old spelling."""
        text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
        scaling = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
        whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {**text, **scaling}}
        config = read(tmp_path, whole)
        local, full = config.plan.attentions[0], config.plan.attentions[5]
        assert (config.vocab_size, local.num_heads, local.num_kv_heads, local.head_dim) == (262208, 8, 4, 256)
        assert (local.window, full.window) == (1024, None) and local.rope is not None and full.rope is not None
        assert local.rope.parameters == {"rope_type": "default", "rope_theta": 10000.0}
        assert full.rope.parameters == {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
        assert config.reads("language_model.model.norm.weight") and not config.reads("vision_tower.head.probe")

    def test_shared_keys_in_both_spellings(self, tmp_path: Path) -> None:
        """The file of Gemma 3n E2B, beside its towers: the last ten layers keep nothing."""
        sizes = {"hidden_size": 2048, "num_hidden_layers": 30, "num_kv_shared_layers": 10}
        text = {**sizes, "intermediate_size": [8192] * 30, "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20}
        old = {"rope_local_base_freq": 1e4, "rope_scaling": None, "rope_theta": 1e6, "altup_coef_clip": 120.0}
        names = {"architectures": ["Gemma3nForConditionalGeneration"]}
        plan = read(tmp_path, {**names, "text_config": text | old}).plan
        ropes = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
        new = {"rope_parameters": {name: {"rope_type": "default", **given} for name, given in ropes.items()}}
        assert plan == read(tmp_path, {**names, "text_config": text | new}).plan
        keys = [each.keys_of for each in plan.attentions]
        assert keys == [None] * 20 + [18, 18, 18, 18, 19] * 2
        assert [bool(each.kept_size) for each in plan.attentions] == [key is None for key in keys]
        assert plan.windows[:6] == (512, 512, 512, 512, None, 512) and plan.logit_cap == 30.0

    def test_eos_of_both_files(self, tmp_path: Path) -> None:
        config = read(tmp_path, LLAMA | {"eos_token_id": 2}, {"eos_token_id": [7, 2, 9], "temperature": 0.6})
        assert config.eos_token_ids == (2, 7, 9)
        assert config.generation_config["temperature"] == 0.6

    def test_an_eos_outside_the_vocabulary_is_none(self, tmp_path: Path) -> None:
        config = read(tmp_path, LLAMA | {"eos_token_id": [LLAMA["vocab_size"], 2]}, {"eos_token_id": 10**12})
        assert config.eos_token_ids == (2,)

    @pytest.mark.parametrize(
        ("stored", "wanted", "dtype"),
        [
            ({"torch_dtype": "float16"}, "auto", "float16"),
            ({"dtype": "bfloat16"}, "auto", "bfloat16"),
            ({"dtype": "torch.float32"}, "auto", "bfloat16"),
            ({"torch_dtype": "auto"}, "auto", "bfloat16"),
            ({"dtype": "int8"}, "float32", "float32"),
            ({"dtype": "bfloat16"}, "half", "float16"),
            ({"dtype": "bfloat16"}, "float", "float32"),
        ],
    )
    def test_dtype(self, tmp_path: Path, stored: dict[str, str], wanted: str, dtype: str) -> None:
        assert read(tmp_path, LLAMA | stored, dtype=wanted).dtype == dtype

    def test_keys_may_be_nested(self, tmp_path: Path) -> None:
        """The config.json of models for text and images: each key of the text is nested, or at the top level."""
        outer = {"architectures": LLAMA["architectures"], "eos_token_id": 7}
        nested = {**LLAMA, "architectures": ["Another"], "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}
        found = read(tmp_path, {**outer, "text_config": nested}, overrides={"hidden_size": 128})
        flat = read(tmp_path, {**nested, **outer, "hidden_size": 128})
        assert (found.plan, found.eos_token_ids, found.hidden_size) == (flat.plan, (7,), 128)
        assert found.architecture == "LlamaForCausalLM"

    def test_overrides_replace_keys(self, tmp_path: Path) -> None:
        config = read(tmp_path, LLAMA, overrides={"max_position_embeddings": 99, "eos_token_id": 5})
        assert (config.context_len, config.eos_token_ids, config.hf["eos_token_id"]) == (99, (5,), 5)


class TestWindows:
    def windows(self, folder: Path, name: str, **keys: Any) -> tuple[int | None, ...]:
        return read(folder, LLAMA | {"architectures": [name], "num_key_value_heads": 2} | keys).plan.windows

    def test_mistral(self, tmp_path: Path) -> None:
        assert self.windows(tmp_path, "MistralForCausalLM", sliding_window=100) == (100, 100)
        assert self.windows(tmp_path, "MistralForCausalLM", sliding_window=None) == (None, None)
        assert self.windows(tmp_path, "MistralForCausalLM") == (4096, 4096)

    def test_qwen2(self, tmp_path: Path) -> None:
        name = "Qwen2ForCausalLM"
        assert self.windows(tmp_path, name, sliding_window=100, max_window_layers=0) == (None, None)
        on = {"use_sliding_window": True, "sliding_window": 100}
        assert self.windows(tmp_path, name, **on, max_window_layers=1) == (None, 100)
        types = ["sliding_attention", "full_attention"]
        assert self.windows(tmp_path, name, **on, max_window_layers=1, layer_types=types) == (100, None)

    def test_llama_has_none(self, tmp_path: Path) -> None:
        assert self.windows(tmp_path, "LlamaForCausalLM", sliding_window=100) == (None, None)


class TestRope:
    def test_old_and_new_spelling(self, tmp_path: Path) -> None:
        old = read(tmp_path, LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3})
        new = read(tmp_path, LLAMA | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
        assert rope(old) == rope(new) == LLAMA3 | {"rope_theta": 5e5}
        assert old.context_len == 2048

    def test_oldest_spelling(self, tmp_path: Path) -> None:
        config = read(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 4}})
        assert rope(config) == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4}
        assert config.context_len == 8192

    def test_gemma3_counts_its_scaling_in_the_positions(self, tmp_path: Path) -> None:
        scaled = {"architectures": ["Gemma3ForCausalLM"], "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        assert read(tmp_path, LLAMA | scaled | {"max_position_embeddings": 131072}).context_len == 131072

    def test_yarn_reaches_as_far_as_its_factor(self, tmp_path: Path) -> None:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
        assert read(tmp_path, LLAMA | {"rope_scaling": yarn}).context_len == 8192
        extended = LLAMA | {"max_position_embeddings": 8192, "rope_scaling": yarn}
        assert read(tmp_path, extended).context_len == 8192
        without_factor = {"rope_type": "yarn", "original_max_position_embeddings": 2048}
        assert rope(read(tmp_path, extended | {"rope_scaling": without_factor}))["factor"] == 4.0

    def test_context_length(self, tmp_path: Path) -> None:
        assert read(tmp_path, LLAMA, context_length=100).context_len == 100
        message = problem(tmp_path, LLAMA, context_length=2049)
        assert message.startswith("--context-length 2049") and "2048" in message and "rope_scaling" in message
        assert "--context-length must be at least 1" in problem(tmp_path, LLAMA, context_length=0)


class TestGemma2:
    def test_reads_what_released_files_say(self, tmp_path: Path) -> None:
        """Files from before transformers 5 name no `layer_types`, and hold both spellings of the activation."""
        said = {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 144}
        config = read(tmp_path, GEMMA2 | said | {"num_hidden_layers": 3, "sliding_window": 512})
        assert config.plan.windows == (512, None, 512) and config.plan.tied_embeddings
        assert (config.plan.embedding_scale, config.plan.logit_cap) == (8.0, 30.0)
        assert (attention(config).scale, attention(config).logit_cap) == (1 / 12, 50.0)
        (mlp,) = {layer.mlp for layer in config.plan.layers}
        assert mlp == GatedMlpPlan(intermediate_size=128, activation="gelu_pytorch_tanh")
        assert {layer.norms.norm.kind for layer in config.plan.layers} == {"rms_plus_one"} == {config.plan.norm.kind}

    def test_may_have_no_caps(self, tmp_path: Path) -> None:
        config = read(tmp_path, GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
        assert (attention(config).logit_cap, config.plan.logit_cap) == (0, 0)

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"attn_logit_softcapping": 0}, ["attn_logit_softcapping must be a number, more than 0"]),
            ({"final_logit_softcapping": -30}, ["final_logit_softcapping"]),
            ({"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar"]),
            ({"use_bidirectional_attention": True}, ["use_bidirectional_attention", "causal"]),
            ({"layer_types": ["full_attention"]}, ["1 layer_types for 2 layers"]),
            ({"dtype": "float16"}, ["float16", "bfloat16"]),
        ],
    )
    def test_faults(self, tmp_path: Path, keys: dict[str, Any], words: list[str]) -> None:
        message = problem(tmp_path, GEMMA2 | keys)
        for word in words:
            assert word in message


class TestFaults:
    """Each is one line that names the key or the file and says what to do."""

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"architectures": ["AbcForCausalLM"]}, ["AbcForCausalLM", "not supported", "mysglang models"]),
            ({"architectures": None}, ["names no architecture"]),
            ({"architectures": "LlamaForCausalLM"}, ['must be a list, not a text; write ["LlamaForCausalLM"]']),
            ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, ["auto_map", "never"]),
            ({"quantization_config": {"quant_method": "awq"}}, ["quantized (awq)"]),
            ({"quantization_config": {"quant_method": "mxfp4"}}, ["quantized (mxfp4)", "four-bit", "bfloat16"]),
            ({"quantization": {"group_size": 64, "bits": 4}}, ["quantized (mlx)"]),
            ({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}}, ["quantized (mlx)"]),
            ({"hidden_size": "64"}, ["config.json: hidden_size must be a whole number, not a text"]),
            ({"hidden_size": -1}, ["hidden_size"]),
            ({"hidden_size": 66}, ["66", "4"]),
            ({"hidden_size": 4}, ["head_dim 1"]),
            ({"num_key_value_heads": 3}, ["3 key-value heads"]),
            ({"num_hidden_layers": None}, ["num_hidden_layers"]),
            ({"dtype": "int8"}, ["config.json: dtype int8 is", "one of half, float16, bfloat16", "with --dtype"]),
            ({"torch_dtype": "torch.float64"}, ["config.json: torch_dtype float64 is"]),
            ({"eos_token_id": "</s>"}, ["eos_token_id"]),
            ({"rope_scaling": {"rope_type": "longest"}}, ["longest", "yarn"]),
            ({"rope_scaling": {"rope_type": "linear"}}, ["linear", "factor"]),
            ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, ["factor"]),
            ({"rope_scaling": 4}, ["rope_scaling"]),
            ({"rope_theta": -1}, ["rope_theta"]),
            ({"rope_theta": 1}, ["rope_theta", "more than 1"]),
            ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, ["high_freq_factor"]),
            ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
            ({"rope_parameters": {"full_attention": LLAMA3}}, ["each type of layer"]),
            ({"text_config": 4}, ["text_config"]),
            (
                QWEN2 | {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": {"llama_4_scaling_beta": "1"}},
                ["llama_4_scaling_beta", "number"],
            ),
            (QWEN2 | {"architectures": ["PhiForCausalLM"], "qk_layernorm": True}, ["qk_layernorm"]),
            (QWEN2 | {"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True}, ["causal"]),
        ],
    )
    def test_names_the_key(self, tmp_path: Path, keys: dict[str, Any], words: list[str]) -> None:
        message = problem(tmp_path, LLAMA | keys)
        for word in words:
            assert word in message

    def test_layer_types_must_count_the_layers(self, tmp_path: Path) -> None:
        keys = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "layer_types": ["full_attention"]}
        assert "layer_types" in problem(tmp_path, LLAMA | keys)
        assert "'chunked_attention'" in problem(tmp_path, LLAMA | keys | {"layer_types": ["chunked_attention"] * 2})

    def test_wanted_dtype(self, tmp_path: Path) -> None:
        assert "int4" in problem(tmp_path, LLAMA, dtype="int4")

    def test_files(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"has no config\.json"):
            ModelConfig.from_path(str(tmp_path))
        (tmp_path / "config.json").write_text('{"architectures": [')
        with pytest.raises(ConfigError, match=r"config.json is not valid JSON"):
            ModelConfig.from_path(str(tmp_path))
        with pytest.raises(ConfigError, match="does not exist"):
            ModelConfig.from_path(str(tmp_path / "nowhere" / "at" / "all"))

    @pytest.mark.promise(39)
    @settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        name=st.sampled_from(sorted(ARCHITECTURES)),
        key=st.sampled_from(
            [*LLAMA, "rope_scaling", "rope_theta", "eos_token_id", "dtype", "head_dim", "layer_types", "hidden_act"]
        ),
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=5,
        ),
    )
    def test_any_value_is_taken_or_named(self, tmp_path: Path, name: str, key: str, value: Any) -> None:
        config = LLAMA | {"architectures": [name], "num_key_value_heads": 2} | {key: value}
        try:
            read(tmp_path, config)
        except ConfigError as error:
            assert str(error)


def test_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; import mysglang.srt.configs.model_config; "
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=PATIENCE_S
    )


# What transformers has no default for, or one that is not served.
WITHOUT_DEFAULT: dict[str, dict[str, Any]] = {
    "gemma3n": {"intermediate_size": 128, "num_kv_shared_layers": 2},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "bamba": {"attn_layer_indices": [3]},
    "granite_moe_hybrid": {"layer_types": ["linear_attention"] * 11 + ["full_attention"]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "zamba2": {"num_hidden_layers": 54},
    "gpt_neo": {"num_hidden_layers": 24},
}


def type_name(family: str) -> str:
    others = {"hunyuan": "hunyuan_dense_v1", "hunyuan_moe": "hunyuan_moe_v1", "gemma4_e": "gemma4"}
    family = others.get(family, family)
    return next(f"{name}ForCausalLM" for name in DECODERS if name.lower().replace("_", "") == family.replace("_", ""))


FIELDS = [
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("max_position_embeddings", "num_key_value_heads", "head_dim", "sliding_window", "max_window_layers"),
    "rms_norm_eps",
]
OF_EXPERTS = [
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    "mlp_only_layers",
]
WRONG_NUMBERS: list[Any] = [
    *(-1, 10**12, 10**30, 2.5, float("nan"), float("inf"), "4" * 100_000, [4], {"a": 4}, 10**4000),
]


@pytest.mark.promise(49)
@pytest.mark.parametrize("field", [*FIELDS, *OF_EXPERTS])
@pytest.mark.parametrize("value", WRONG_NUMBERS, ids=lambda value: str(value)[:12])
def test_numbers_that_are_none(field: str, value: Any, tmp_path: Path) -> None:
    if field == "rms_norm_eps" and isinstance(value, (int, float)) and not 0 <= value <= 1:
        value = float(value) if abs(value) < 1e300 else value
    family = QWEN2 if field in ("sliding_window", "max_window_layers") else LLAMA
    if field in OF_EXPERTS:
        family, value = MOE, [-1] if value == [4] else value  # a list of layers may be one of layer 4
    said = problem(tmp_path, family | {field: value})
    assert "config.json" in said and field in said and len(said) < 1100


NEXT = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_key_value_heads": 2,
    "head_dim": 32,
    "full_attention_interval": 2,
}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor 0.1 turns 3 of 32"),
        ({"partial_rotary_factor": 0.01}, "turns 0 of 32"),
        *(({"partial_rotary_factor": value}, "partial_rotary_factor must be") for value in (2, -1, "x", float("nan"))),
        ({"full_attention_interval": 3}, "no layer attends over keys"),
        ({"layer_types": ["sliding_attention"] * 2}, "'sliding_attention' is not supported"),
        ({"linear_num_value_heads": 31}, "31 value heads (linear_num_value_heads)"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 10**12}, "linear_key_head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; it must be 'silu'"),
    ],
)
def test_layers_with_a_state_that_cannot_be(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    said = problem(tmp_path, NEXT | values)
    assert says in said and "config.json" in said


def test_layers_with_a_state_by_their_interval(tmp_path: Path) -> None:
    plan = read(tmp_path, NEXT | {"num_hidden_layers": 5}).plan
    attending = [isinstance(layer.attention, AttentionPlan) for layer in plan.layers]
    assert attending == [False, True, False, True, False] and len(plan.attentions) == 2
    assert plan.attentions[0].rope is not None and plan.attentions[0].rope.lanes(32) == 8


@pytest.mark.promise(49)
def test_the_limit_of_a_size_is_named(tmp_path: Path) -> None:
    said = problem(tmp_path, LLAMA | {"num_hidden_layers": 10**9})
    assert said == "config.json: num_hidden_layers must be a whole number, at most 4096"


@pytest.mark.promise(49)
@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", [*WRONG_NUMBERS, True, 0], ids=lambda value: str(value)[:12])
def test_rotary_numbers_that_are_none(key: str, value: Any, tmp_path: Path) -> None:
    if value == 2.5 or (key == "original_max_position_embeddings" and value == 0):
        pytest.skip("a value that is taken")
    if value == 10**12:
        value *= 10
    said = problem(tmp_path, LLAMA | {"rope_scaling": LLAMA3 | {key: value}})
    assert "config.json" in said and key in said and len(said) < 1100


@pytest.mark.promise(49)
def test_a_scaling_that_makes_too_many_positions(tmp_path: Path) -> None:
    said = problem(tmp_path, LLAMA | {"rope_scaling": {"type": "linear", "factor": 1e9}})
    assert "max_position_embeddings 2048, scaled by 1000000000.0" in said


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"eos_token_id": list(range(2000))}, "eos_token_id lists 2000 ids, and at most 1024"),
        ({"eos_token_id": [float("nan")]}, "eos_token_id must be"),
        ({"architectures": ["A" * 10**6]}, "is not supported"),
        ({"architectures": ["A\n\x1b[2JB"]}, "A [2JB is not supported"),
        ({"rope_scaling": {"rope_type": ["llama3"]}}, "rope type"),
        (
            {"layer_types": ["x"] * 10**5, "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4},
            "100000 layer_types for 2 layers",
        ),
    ],
)
def test_other_hostile_values(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    said = problem(tmp_path, LLAMA | values)
    assert says in said and len(said) < 1100
