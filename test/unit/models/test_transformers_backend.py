"""Models that no code of ours computes: transformers' layers over our pages give transformers' logits, and what would
give others is refused.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fixtures.foreign_checkpoints import FOREIGN, GPT2
from fixtures.forward_batches import PageRows
from fixtures.tiny_checkpoints import FAMILIES, PAD, SIZES, save_random
from fixtures.transformers_pair import (
    PROMPTS,
    SCENARIOS,
    Pair,
    check_scenario,
    chunked,
    decode,
    logits_by_transformers,
    native_attention,
    pair_of,
    run,
)
from mysglang.srt.configs.architectures import find_architecture
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_split
from mysglang.srt.distributed.ranks import RANKS_OF_ONE
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.decoder_blocks import GatedMLP
from mysglang.srt.layers.layernorm import RMSNorm
from mysglang.srt.layers.linear import LinearBase
from mysglang.srt.layers.moe.experts import Experts
from mysglang.srt.layers.quantization.int8wo import Int8ExpertsMethod, Int8LinearMethod
from mysglang.srt.layers.quantization.unquantized import UnquantizedLinearMethod
from mysglang.srt.managers.worker_factory import make_worker
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.weight_update import WeightUpdate, checkpoint_tensors
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.registry import how_served
from mysglang.srt.models.transformers_backend.model import TransformersCausalLM
from mysglang.srt.models.transformers_backend.probe import TOKENS, CausalMask, Refused, check_mask, sinks_of, spec_of
from mysglang.srt.server_args import ServerArgs

CPU = torch.device("cpu")

UNKNOWN_HERE = "PersimmonForCausalLM"
"""Transformers knows it, and no code of ours computes it."""


def foreign_pair(name: str, folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> Pair:
    """A pair whose model uses transformers' code, also where there is code of ours."""
    theirs = save_random(FOREIGN[name](), folder, dtype=dtype, seed=seed)
    return pair_of(theirs, folder, dtype, impl="transformers")


@pytest.fixture(scope="module", params=FOREIGN)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("checkpoint")
    return foreign_pair(request.param, folder)


def test_logits_in_float32(pair: Pair) -> None:
    """However a prompt is cut into steps; and nothing multiplies beside our linears and experts."""
    assert isinstance(pair.ours, TransformersCausalLM)
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=1)
        check_scenario(pair, scenario, page_size=16, last_only=True)
    matrices = {name for name, each in pair.ours.named_modules() if any(p.dim() > 1 for p in each.parameters(False))}
    ours = {name for name, each in pair.ours.named_modules() if isinstance(each, (LinearBase, Experts, nn.Embedding))}
    routers = {name for name in matrices if name.endswith(("router", "gate"))}
    assert matrices <= ours | routers


def test_ten_of_these_architectures_have_no_code_of_ours() -> None:
    """A family that gets code of its own leaves the others to be the proof that any model can be served."""
    names = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[make().model_type] for make in FOREIGN.values()]
    assert len({name for name in names if find_architecture(name) is None}) >= 10, names


def test_attention_of_the_server(tmp_path: Path) -> None:
    """Windows and soft caps, by the backend of a worker without kernels."""
    pair = foreign_pair("vaultgemma", tmp_path)
    assert [(spec.window, spec.logit_cap) for spec in pair.ours.attention_specs()] == [(20, 2), (None, 2), (20, 2)]
    for scenario in (chunked, decode):
        check_scenario(pair, scenario, page_size=16, attention=native_attention)


def test_llama_by_both_codes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same logits; the log says whose code it is."""
    theirs = save_random(FAMILIES["llama"](tie_word_embeddings=True), tmp_path)
    with caplog.at_level(logging.INFO):
        own = pair_of(theirs, tmp_path, torch.float32)
        foreign = pair_of(theirs, tmp_path, torch.float32, impl="transformers")
    assert "LlamaForCausalLM runs with the model code of mysglang." in caplog.messages
    assert "LlamaForCausalLM runs with the model code of transformers." in caplog.messages
    assert sum(isinstance(module, RMSNorm) for module in foreign.ours.modules()) == 7
    assert sum(isinstance(module, GatedMLP) for module in foreign.ours.modules()) == 3
    check_scenario(own, decode, page_size=16)
    check_scenario(foreign, decode, page_size=16)


def test_int8_weights(tmp_path: Path) -> None:
    """Linears take the method of the launch: logits are those of the rounded weights, near the plain ones."""
    plain = foreign_pair("gpt2", tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32", impl="transformers")
    rounded = load_model(config, LoadConfig(quantization="int8wo"), CPU, torch.float32)
    methods = {name: type(each.method) for name, each in rounded.named_modules() if isinstance(each, LinearBase)}
    assert methods.pop("lm.lm_head") is UnquantizedLinearMethod and set(methods.values()) == {Int8LinearMethod}
    pages = PageRows(page_size=16)
    logits = run(rounded, pages, decode(pages))[0][48]
    error = float((logits - plain.expected[0][48]).norm() / plain.expected[0][48].norm())
    assert 0 < error < 0.1


def test_bfloat16(tmp_path: Path) -> None:
    """The result is as far from float32 as that of transformers itself."""
    pair = foreign_pair("gpt_neox", tmp_path, torch.bfloat16)
    pages = PageRows(page_size=16)
    found = run(pair.ours, pages, decode(pages))[0][48]
    truth = pair.theirs.float()(torch.tensor([PROMPTS[0]])).logits[0, 48]
    assert (found - truth).norm() < 1.25 * (pair.expected[0][48] - truth).norm() + 0.01 * truth.norm()


def test_weights_are_updated_and_read_by_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    pair, other = foreign_pair("dots1", tmp_path / "one"), foreign_pair("dots1", tmp_path / "other", seed=1)
    update = WeightUpdate(pair.ours)
    tensors = checkpoint_tensors(tmp_path / "other")
    assert {name for name, _ in update.tensors()} == {name for name, _ in tensors}
    update.apply(update.plan(tensors, whole=True), lambda: None)
    check_scenario(Pair(pair.theirs, pair.ours, other.expected), decode, page_size=16)
    for name, tensor in tensors:
        assert torch.equal(update.read(name), tensor)


def test_one_tensor_of_all_experts_is_told_once(tmp_path: Path) -> None:
    """Also where the checkpoint has another name for it than transformers: the weights checker tells all its values."""
    theirs = save_random(FAMILIES["granite_moe"](), tmp_path)
    update = WeightUpdate(pair_of(theirs, tmp_path, torch.float32, impl="transformers", slots=()).ours)
    told, stored = list(update.tensors()), load_file(tmp_path / "model.safetensors")
    assert sorted(name for name, _ in told) == sorted(stored)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in told)


def test_an_override_in_the_spelling_of_transformers_4(tmp_path: Path) -> None:
    """The file has `rope_theta` among `rope_parameters`."""
    save_random(FOREIGN["persimmon"](), tmp_path / "one")
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}
    theirs = save_random(FOREIGN["persimmon"](rope_parameters=rope), tmp_path / "other")
    config = ModelConfig.from_path(str(tmp_path / "one"), dtype="float32", overrides={"rope_theta": 300.0})
    ours = load_model(config, LoadConfig(), CPU, torch.float32)
    check_scenario(Pair(theirs, ours, logits_by_transformers(theirs, (0, 2, 3))), chunked, page_size=16)


def test_a_checkpoint_that_is_not_the_models(tmp_path: Path) -> None:
    """Missing and unknown tensors are named as the checkpoint names them."""
    theirs = save_random(FOREIGN["gpt2"](), tmp_path)
    tensors = dict(theirs.state_dict())
    del tensors["lm_head.weight"], tensors["transformer.h.1.attn.c_attn.bias"]
    tensors["transformer.h.1.attn.gate"] = torch.zeros(3)
    with pytest.raises(ConfigError) as caught:
        theirs_config(theirs.config, tmp_path).load_weights(tensors.items())
    assert caught.value.problems == (
        "the checkpoint lacks tensors for transformer.h.1.attn.c_attn.bias",
        "the checkpoint has tensors that the model does not know: transformer.h.1.attn.gate",
    )


@pytest.mark.parametrize(("name", "within"), [("gpt_neox", "gpt_neox.layers.1.attention"), ("phi", "model.layers.1")])
def test_tables_in_old_checkpoints(name: str, within: str, tmp_path: Path) -> None:
    """Published checkpoints of Pythia have the rotary frequencies of each layer as tensors, which are not read."""
    theirs = save_random(FOREIGN[name](), tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), f"{within}.rotary_emb.inv_freq": torch.ones(8)}, path)
    check_scenario(pair_of(theirs, tmp_path, torch.float32, impl="transformers"), decode, page_size=16)


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "auto", ""])
def test_the_dtype_of_the_file_is_read_by_us_alone(dtype: str, tmp_path: Path) -> None:
    save_random(FOREIGN["phi"](), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": dtype}))
    config = ModelConfig.from_path(str(tmp_path), impl="transformers")
    assert config.dtype == "bfloat16"
    load_model(config, LoadConfig(), CPU, torch.bfloat16)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """A check that compares passes would give another reason for them."""
    theirs = save_random(FOREIGN["phi"](), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.fc1.bias"][3] = float("nan")
    save_file(tensors, path)
    with pytest.raises(ConfigError, match="hidden states in float32 are not finite numbers"):
        pair_of(theirs, tmp_path, torch.float32, impl="transformers")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_very_short_context(length: int, tmp_path: Path) -> None:
    save_random(FOREIGN["phi"](), tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32", context_length=length, impl="transformers")
    load_model(config, LoadConfig(), CPU, torch.float32)


def theirs_config(config: PretrainedConfig, folder: Path, **options: Any) -> TokenModel:
    """A model with random weights, of a config alone."""
    config.architectures = config.architectures or [architecture_of(config)]
    config.save_pretrained(folder)
    read = ModelConfig.from_path(str(folder), dtype="float32", impl="transformers")
    return load_model(read, LoadConfig(load_format="dummy", **options), CPU, torch.float32)


def architecture_of(config: PretrainedConfig) -> str:
    return str(transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "layers with chunks": (
        transformers.Llama4TextConfig(**SIZES, layer_types=["chunked_attention"] * 3),
        "layers of the type chunked_attention",
    ),
    "layers with states": (
        transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"]),
        "its layers keep a state",
    ),
    "an encoder beside": (transformers.GPT2Config(**GPT2, add_cross_attention=True), "add_cross_attention"),
    "rotary positions by the longest of a pass": (
        transformers.Phi3Config(**SIZES, **PAD, rope_parameters=LONGROPE, original_max_position_embeddings=64),
        "rope_type longrope",
    ),
    "experts of another form": (
        transformers.GptOssConfig(**SIZES, **PAD, num_local_experts=4, num_experts_per_tok=2),
        "GptOssExperts has experts with matrices [input, output]",
    ),
    "a mask of its own": (transformers.DogeConfig(**SIZES, **PAD), "'CausalMask' object has no attribute"),
    "no interface": (transformers.BioGptConfig(**SIZES), "_supports_attention_backend"),
    "tokens that see later ones": (transformers.BertConfig(**SIZES), "neither causal nor a causal window"),
    "a size of 0": (FOREIGN["minicpm3"](q_lora_rank=0), "a size in config.json is 0, so model.layers.0.self_attn.q_a"),
    "embeddings of another size": (
        FOREIGN["opt"](word_embed_proj_dim=48),
        "embeddings are of another size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_start(name: str, tmp_path: Path) -> None:
    config, why = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        theirs_config(config, tmp_path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{config.architectures[0]} is not served by transformers' code: ")
    assert why in problem


def test_experts_are_quantized_too(tmp_path: Path) -> None:
    """And what chooses them is not."""
    model = theirs_config(FOREIGN["granitemoe"](), tmp_path, quantization="int8wo")
    assert all(isinstance(each.method, Int8ExpertsMethod) for each in model.modules() if isinstance(each, Experts))


class Attention(nn.Module):
    """Stands for a module of transformers."""

    is_causal = True


def call(**arguments: Any) -> None:
    q, k = torch.zeros(1, 4, TOKENS, 8), torch.zeros(1, 2, TOKENS, 8)
    mask = arguments.pop("mask", CausalMask(None))
    spec_of(0, Attention(), q, k, arguments.pop("v", k), mask, {"dropout": 0.0, "use_cache": True, **arguments})
    sinks_of(Attention(), arguments)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"s_aux": torch.zeros(4)}, "sinks that are no parameter"),
        ({"position_bias": torch.zeros(1, 4, 5, 5)}, "attends with position_bias"),
        ({"dropout": 0.1}, "attends with dropout"),
        ({"head_mask": torch.zeros(4)}, "attends with head_mask"),
        ({"is_causal": False}, "is not causal"),
        ({"sliding_window": 7}, "window of 7"),
        ({"sliding_window": 7, "mask": CausalMask(8)}, "window of 7"),
        ({"mask": torch.zeros(1, 1, 5, 5)}, "a mask of its own"),
        ({"mask": None}, "attends without a mask"),
        ({"v": torch.zeros(1, 2, TOKENS, 16)}, "shapes"),
        ({"v": torch.zeros(1, 2, TOKENS + 1, 8)}, "values of shape"),
    ],
)
def test_a_call_that_is_not_served(arguments: dict[str, Any], why: str) -> None:
    call()
    call(sliding_window=7, mask=CausalMask(7), softcap=3.0, scaling=0.5)
    with pytest.raises(Refused, match=why):
        call(**arguments)


def test_masks_are_compared_key_by_key() -> None:
    def causal(_: int, __: int, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def wider(_: int, __: int, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= query - 9)

    check_mask(causal, None)
    check_mask(wider, 10)
    for sees, width in ((wider, 9), (wider, None), (causal, 9), (lambda *_: torch.tensor(True), None)):
        with pytest.raises(Refused):
            check_mask(sees, width)


def test_positions_that_a_model_makes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen when the loaded model is checked."""
    kind = transformers.models.phi.modeling_phi.PhiRotaryEmbedding
    turned = kind.forward

    def by_place(self: nn.Module, x: Tensor, position_ids: Tensor, *more: Any) -> Any:
        return turned(self, x, torch.arange(x.shape[1])[None], *more)

    monkeypatch.setattr(kind, "forward", by_place)
    with pytest.raises(ConfigError, match="in pieces is not what it is whole"):
        foreign_pair("phi", tmp_path)


@pytest.mark.parametrize("flag", ["--enable-mfu-metrics", "--enable-deterministic-inference"])
def test_options_that_need_a_plan_are_refused(flag: str, tmp_path: Path) -> None:
    FOREIGN["gpt2"](architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    args = ServerArgs.from_cli(["--model-path", str(tmp_path), "--device", "cpu", flag])
    model = ModelConfig.from_path(str(tmp_path), impl="transformers")
    with pytest.raises(ConfigError, match=f"{flag}: GPT2LMHeadModel is computed by transformers' code"):
        make_worker(args, model, RANKS_OF_ONE)


def test_ranks_are_refused(tmp_path: Path) -> None:
    FOREIGN["gpt2"](architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="--tp-size 2: GPT2LMHeadModel is computed by transformers' code"):
        check_split(ModelConfig.from_path(str(tmp_path), impl="transformers"), 2)


@pytest.mark.parametrize(
    ("architecture", "by", "reason"),
    [
        ("LlamaForCausalLM", "mysglang", ""),
        (UNKNOWN_HERE, "transformers", ""),
        ("DogeForCausalLM", "nobody", "CausalMask"),
        ("BioGptForCausalLM", "nobody", "_supports_attention_backend"),
        ("OtherForCausalLM", "nobody", "no causal language model of that name"),
        ("T5ForConditionalGeneration", "nobody", "only causal language models"),
    ],
)
def test_how_served(architecture: str, by: str, reason: str) -> None:
    found = how_served(architecture)
    assert found.by == by and reason in found.reason


@pytest.mark.parametrize(
    ("impl", "architecture", "code"),
    [
        ("auto", "LlamaForCausalLM", "mysglang"),
        ("transformers", "LlamaForCausalLM", "transformers"),
        ("auto", UNKNOWN_HERE, "transformers"),
        ("mysglang", UNKNOWN_HERE, "no code of mysglang computes PersimmonForCausalLM"),
        ("transformers", "LlamaModel", "LlamaModel is none"),
    ],
)
def test_model_impl(impl: Any, architecture: str, code: str, tmp_path: Path) -> None:
    FAMILIES["llama"](architectures=[architecture]).save_pretrained(tmp_path)
    try:
        found = ModelConfig.from_path(str(tmp_path), impl=impl)
    except ConfigError as error:
        assert code in str(error)
    else:
        assert (found.decoder is None) is (code == "transformers")
