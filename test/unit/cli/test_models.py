"""`mysglang models`: its figures against sums done by hand, and models that do not run or do not fit."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

from shapes import SHAPES, write_shape

from fixtures.installed import install
from mysglang.bench.refused import Failed, Refused
from mysglang.cli.main import run
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.configs.architectures import ARCHITECTURES
from mysglang.srt.configs.floors import Ceilings, ModelSizes
from mysglang.srt.configs.layer_plan import Size
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.models.registry import Serving

GIB = 1 << 30

LAYER = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
LLAMA_8B = 32 * LAYER + 2 * 4096 * 128256
TOKEN = 32 * 2 * 8 * 128 * 2

MOE: dict[str, Any] = {
    **SHAPES["qwen3-0.6b"],
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LATENT: dict[str, Any] = {
    **{name: value for name, value in SHAPES["qwen3-0.6b"].items() if name not in ("head_dim", "num_key_value_heads")},
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_key_value_heads": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
}
GEMMA: dict[str, Any] = {
    **SHAPES["qwen3-0.6b"],
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 128,
    "sliding_window": 512,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def model(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["models", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_lists_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(figures(capsys)) == set(ARCHITECTURES)
    assert run(["models"]) == 0
    assert all(name in capsys.readouterr().out for name in ["Qwen3ForCausalLM"])


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3Model"])
def test_whether_an_architecture_runs(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert set(figures(capsys, name)) == {name}
    assert run(["models", name]) == 0 and name in capsys.readouterr().out


def test_an_architecture_that_transformers_code_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert "`mysglang models NAME` says whether one runs" in capsys.readouterr().out
    assert run(["models", "PersimmonForCausalLM"]) == 0
    assert "text, by code of transformers" in capsys.readouterr().out
    assert figures(capsys, "PersimmonForCausalLM")["PersimmonForCausalLM"]["code"] == "transformers"
    with pytest.raises(Failed, match="BioGptForCausalLM does not run: its attention is not called"):
        run(["models", "BioGptForCausalLM"])
    with pytest.raises(Failed, match="did you mean PersimmonForCausalLM"):
        run(["models", "PersimonForCausalLM"])


def test_an_architecture_of_a_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says what is wrong with a package, as a start does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    row = "Architecture('file:Class', package='odd_models')"
    table = f"from mysglang.srt.configs.architectures import Architecture\nTABLE = {{'OddForCausalLM': {row}}}\n"
    install(tmp_path, "odd", "Odd = nowhere:TABLE", odd_table=table)
    with pytest.raises(Failed, match="odd registers Odd = 'nowhere:TABLE'"):
        run(["models", "OddForCausalLM"])
    (tmp_path / "odd-1.0.dist-info" / "entry_points.txt").write_text("[mysglang.models]\nOdd = odd_table:TABLE\n")
    assert figures(capsys, "OddForCausalLM")["OddForCausalLM"]["code"] == "odd_models"
    assert run(["models", "OddForCausalLM"]) == 0
    assert "by code of odd_models" in capsys.readouterr().out


def test_an_architecture_whose_defaults_build_no_model_runs_on_a_condition(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Serving("transformers", "depends on config.json")
    monkeypatch.setattr("mysglang.srt.models.registry.how_served", lambda name: served)
    assert run(["models", "PersimmonForCausalLM"]) == 0
    assert "depends on config.json" in capsys.readouterr().out


def test_a_misspelt_architecture_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(Failed, match=r"LamaForCausalLM is not a path .*; did you mean LlamaForCausalLM"):
        run(["models", "LamaForCausalLM"])
    with pytest.raises(Failed, match="`mysglang models` lists the architectures"):
        run(["models", "something-else"])


@pytest.mark.parametrize("words", [["--memory", "3"], ["LlamaForCausalLM", "--batch-size", "2", "--dtype", "half"]])
def test_options_for_figures_without_a_model_are_refused(words: list[str]) -> None:
    flags = ", ".join(word for word in words if word.startswith("--"))
    with pytest.raises(Refused) as caught:
        run(["models", *words])
    assert all(flag in str(caught.value) for flag in flags.split(", ")) and "only with a MODEL" in str(caught.value)


def test_the_model_that_is_built_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tiny` names it, unless a directory here has that name."""
    monkeypatch.chdir(tmp_path)
    assert figures(capsys, "tiny")["checkpoint"]["files"] == 1
    model(tmp_path / "tiny", SHAPES["qwen3-0.6b"])
    assert figures(capsys, "tiny")["checkpoint"] is None


def test_a_shape_without_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write_shape("llama-8b", tmp_path))
    words = ("--memory", "24", "--bandwidth", "2", "--mem-fraction-static", "0.8", "--batch-size", "4", "4096")
    found = figures(capsys, path, *words)
    assert (found["parameters"], found["weight_bytes"], found["checkpoint"]) == (LLAMA_8B, 2 * LLAMA_8B, None)
    assert found["kv_token_bytes"] == TOKEN == 131072
    assert found["kv_tokens"] == int((24 * GIB * 0.8 - 2 * LLAMA_8B) / TOKEN)
    read = 2 * (LLAMA_8B - 4096 * 128256)
    few, many = found["decode_steps"]
    assert few["ms"] == pytest.approx((read + 4 * 1024 * TOKEN) / 2e12 * 1e3)
    assert few["tokens_per_s"] == pytest.approx(4e3 / few["ms"])
    assert (few["fits"], many["fits"]) == (True, False)


def test_products_decide_where_they_take_longer(tmp_path: Path) -> None:
    sizes = ModelSizes.of(ModelConfig.from_path(str(write_shape("llama-8b", tmp_path))))
    work = sizes.decode_step(rows=1000, context=1)
    assert work.operations == 2 * 1000 * (32 * LAYER + 4096 * 128256)
    slow = Ceilings(read=1e15, gemm=1e12, attention=1e12)
    assert work.seconds(slow) == pytest.approx(work.operations / 1e12 + 1000 * TOKEN / 1e15)


def test_a_checkpoint_is_counted_from_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, str(EMBEDDED_MODEL))
    assert found["checkpoint"]["files"] == 1
    assert found["checkpoint"]["file_bytes"] == (EMBEDDED_MODEL / "model.safetensors").stat().st_size
    assert found["parameters"] == found["checkpoint"]["parameters"] == pytest.approx(7.34e6, rel=0.01)


def test_a_config_of_another_model_than_the_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED_MODEL, tmp_path / "wrong")
    config = json.loads((EMBEDDED_MODEL / "config.json").read_text())
    with pytest.raises(Failed, match="intermediate_size makes 100"):
        run(["models", model(tmp_path / "wrong", config | {"intermediate_size": 100})])


def test_experts_are_read_as_rows_choose_them(tmp_path: Path) -> None:
    sizes = ModelSizes.of(ModelConfig.from_path(model(tmp_path / "moe", MOE)))
    expert = 28 * 3 * 1024 * 512
    one, two, many = (sizes.decode_step(rows, context=1).weight_bytes for rows in (1, 2, 1000))
    assert two - one == pytest.approx(2 * 8 * expert * ((1 - 0.75**2) - 0.25))
    assert many - one == pytest.approx(2 * 6 * expert)
    everything = sizes.active_parameters + 6 * expert
    assert many == pytest.approx(2 * everything)


ZAMBA: dict[str, Any] = {
    **SHAPES["qwen3-0.6b"],
    "architectures": ["Zamba2ForCausalLM"],
    "model_type": "zamba2",
    "layers_block_type": ["hybrid", "hybrid"],
    "num_hidden_layers": 2,
    "num_mem_blocks": 1,
    "n_mamba_heads": 32,
    "tie_word_embeddings": True,
    "adapter_rank": 8,
}


def test_a_block_that_layers_share_is_read_once_and_multiplied_with_in_each(tmp_path: Path) -> None:
    config = ModelConfig.from_path(model(tmp_path / "zamba", ZAMBA))
    sizes = ModelSizes.of(config)
    (block,) = config.plan.blocks
    shared = sum(each.parameters for each in block.matrices(Size("hidden_size", 1024)) if each.copies < each.used)
    assert shared > 0
    assert sizes.active_parameters == sizes.parameters + shared
    for rows in (1, 2, 1000):
        assert sizes.decode_step(rows, context=1).weight_bytes == 2 * sizes.parameters


def test_layers_with_a_window_read_no_more_than_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = model(tmp_path / "gemma", GEMMA)
    half = 14 * 2 * 8 * 128 * 2
    sizes = ModelSizes.of(ModelConfig.from_path(path))
    assert sizes.decode_step(3, context=2048).kv_bytes == 3 * (2048 + 512) * half
    assert sizes.decode_step(3, context=100).kv_bytes == 3 * 2 * 100 * half
    assert figures(capsys, path, "--swa-full-tokens-ratio", "0.5")["kv_token_bytes"] == 1.5 * half


def test_a_kv_cache_of_eight_bit_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write_shape("llama-8b", tmp_path))
    assert figures(capsys, path, "--kv-cache-dtype", "fp8_e4m3")["kv_token_bytes"] == TOKEN / 2


def test_latent_rows_are_counted_once(tmp_path: Path) -> None:
    sizes = ModelSizes.of(ModelConfig.from_path(model(tmp_path / "latent", LATENT)))
    assert sizes.kv_token_bytes() == 28 * (512 + 64) * 2


NEXT: dict[str, Any] = {
    **MOE,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "shared_expert_intermediate_size": 512,
}


def test_states_share_the_memory_with_the_kv_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """7 of 28 layers attend over keys; the others keep a state of Qwen3-Next's sizes."""
    path = model(tmp_path / "next", NEXT)
    state = 21 * (3 * 8192 * 2 + 32 * 128 * 128 * 4)
    sizes = ModelSizes.of(ModelConfig.from_path(path))
    assert sizes.state_bytes == state
    assert sizes.kv_token_bytes() == 7 * 2 * 8 * 128 * 2
    assert sizes.decode_step(3, context=10).kv_bytes == 3 * (10 * sizes.kv_token_bytes() + 2 * state)
    words = ("--memory", "24", "--mamba-full-memory-ratio", "1", "--batch-size", "1", "4000", "--input-len", "1")
    found = figures(capsys, path, *words)
    room = 24 * GIB * 0.9 - found["weight_bytes"]
    assert (found["state_bytes"], found["states"]) == (state, int(room / 2 / state) - 1)
    assert found["kv_tokens"] == int((room - (found["states"] + 1) * state) / sizes.kv_token_bytes())
    assert [step["fits"] for step in found["decode_steps"]] == [True, False]
    assert run(["models", path]) == 0
    assert "42.98 MiB for each request" in capsys.readouterr().out


FALCON_MAMBA: dict[str, Any] = {
    "architectures": ["FalconMambaForCausalLM"],
    "model_type": "falcon_mamba",
    "vocab_size": 65024,
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "state_size": 16,
    "expand": 2,
    "tie_word_embeddings": False,
}


def test_states_alone_have_all_the_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Tokens take none, so requests of any length fit as long as there are states."""
    path, state = model(tmp_path / "states", FALCON_MAMBA), 64 * 8192 * (3 * 2 + 16 * 4)
    found = figures(capsys, path, "--memory", "24", "--batch-size", "100", "4000", "--input-len", "200000")
    room = 24 * GIB * 0.9 - found["weight_bytes"]
    assert (found["state_bytes"], found["states"]) == (state, int(room / state) - 1)
    assert (found["kv_token_bytes"], found["kv_tokens"], found["full_contexts"]) == (0, None, None)
    assert [step["fits"] for step in found["decode_steps"]] == [True, False]
    assert run(["models", path]) == 0
    assert "none: no layer attends over keys" in capsys.readouterr().out


def test_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(write_shape("llama-8b", tmp_path))
    assert run(["models", path, "--memory", "8"]) == 0
    said = capsys.readouterr().out
    assert "no: the weights need more than 90% of the memory" in said and "tokens/s" not in said


def test_an_encoder_keeps_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": 100,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    found = figures(capsys, model(tmp_path / "bert", config))
    assert found["task"] == "embed" and "kv_tokens" not in found
    assert run(["models", str(tmp_path / "bert")]) == 0
    assert "vectors" in capsys.readouterr().out


def test_an_architecture_that_does_not_run(tmp_path: Path) -> None:
    path = model(tmp_path / "other", SHAPES["llama-8b"] | {"architectures": ["OtherForCausalLM"]})
    with pytest.raises(Failed, match="architecture OtherForCausalLM is not supported"):
        run(["models", path])
