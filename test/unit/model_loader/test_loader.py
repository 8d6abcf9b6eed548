"""Building and filling a model: shards, dtypes, dummy values, and what is said of a checkpoint that does not fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.layernorm import PlusOneRMSNorm
from mysglang.srt.layers.parameter import weight_parameters
from mysglang.srt.model_loader import loader
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM

CPU = torch.device("cpu")


def load(folder: Path, load_config: LoadConfig | None = None, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(ModelConfig.from_path(str(folder)), load_config or LoadConfig(), CPU, dtype)


def values(model: CausalLM) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint("llama", tmp_path)
    return tmp_path


def edit(folder: Path, change: dict[str, Tensor | None]) -> None:
    """Replace tensors of a checkpoint of one file; None takes one away."""
    tensors: dict[str, Tensor | None] = {**load_file(folder / "model.safetensors"), **change}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def problem(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder)
    return str(caught.value)


def test_every_value_arrives_and_nothing_else(checkpoint: Path) -> None:
    ours, theirs = values(load(checkpoint)), load_file(checkpoint / "model.safetensors")
    attention = "layers.1.self_attn."
    stacked = [theirs[f"model.{attention}{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(ours[attention + "qkv_proj.weight"], torch.cat(stacked))
    assert torch.equal(ours["embed_tokens.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["lm_head.weight"], theirs["lm_head.weight"])
    assert sum(value.numel() for value in ours.values()) == sum(value.numel() for value in theirs.values())
    assert not any(value.requires_grad for value in ours.values())


def test_shards_hold_the_same(tmp_path: Path) -> None:
    make_checkpoint("qwen3", tmp_path / "whole")
    make_checkpoint("qwen3", tmp_path / "sharded", shard_size="100KB")
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    whole, sharded = values(load(tmp_path / "whole")), values(load(tmp_path / "sharded"))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_weights_take_the_wanted_dtype_and_the_rotary_table_float32(checkpoint: Path) -> None:
    model = load(checkpoint, dtype=torch.bfloat16)
    assert {value.dtype for value in values(model).values()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


def test_layers_share_one_rotary_table(checkpoint: Path) -> None:
    assert len(list(load(checkpoint).buffers())) == 1


class TestTied:
    """One table for embedding and logits, under either name or both."""

    @pytest.fixture
    def tied(self, tmp_path: Path) -> Path:
        make_checkpoint("qwen2", tmp_path, tie_word_embeddings=True)
        return tmp_path

    def test_is_one_parameter(self, tied: Path) -> None:
        model = load(tied)
        assert model.lm_head.weight is model.embed_tokens.weight
        assert not any("lm_head" in name for name in values(model))

    def test_may_stand_there_twice(self, tied: Path) -> None:
        table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
        edit(tied, {"lm_head.weight": table.clone()})
        assert torch.equal(load(tied).embed_tokens.weight, table)

    def test_may_have_the_other_name(self, tied: Path) -> None:
        table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
        edit(tied, {"lm_head.weight": table.clone(), "model.embed_tokens.weight": None})
        assert torch.equal(load(tied).embed_tokens.weight, table)

    def test_may_not_differ(self, tied: Path) -> None:
        table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
        edit(tied, {"lm_head.weight": table + 1})
        assert "tie_word_embeddings" in problem(tied)


class TestWhatDoesNotFit:
    def test_missing(self, checkpoint: Path) -> None:
        edit(checkpoint, {"model.layers.1.self_attn.k_proj.weight": None, "model.norm.weight": None})
        message = problem(checkpoint)
        assert "lacks" in message and "for model.layers.1.self_attn.k_proj.weight, model.norm.weight" in message

    def test_missing_names_are_those_of_this_checkpoint(self, checkpoint: Path) -> None:
        """A head never has the prefix, and a checkpoint of the transformer alone has none at all."""
        edit(checkpoint, {"lm_head.weight": None, "model.embed_tokens.weight": None})
        assert "lacks tensors for model.embed_tokens.weight, lm_head.weight" in problem(checkpoint)
        tensors = load_file(checkpoint / "model.safetensors")
        renamed = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        save_file(renamed, checkpoint / "model.safetensors")
        assert "lacks tensors for embed_tokens.weight, lm_head.weight" in problem(checkpoint)

    def test_all_is_found_before_a_weight_is_read(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Reading takes minutes, and the header of a file has names, shapes and dtypes."""
        edit(
            checkpoint,
            {
                "model.layers.0.mlp.up_proj.weight": torch.zeros(136, 95),
                "model.layers.1.mlp.up_proj.weight": torch.zeros(136, 96, dtype=torch.int8),
                "model.norm.weight": None,
                "x": torch.zeros(1),
            },
        )

        def read(*_: object, **__: object) -> None:
            raise AssertionError("weights are read")

        monkeypatch.setattr(loader, "read_weights", read)
        with pytest.raises(ConfigError) as caught:
            load(checkpoint)
        assert caught.value.problems == (
            "tensor model.layers.0.mlp.up_proj.weight has shape [136, 95] in the checkpoint, but the model needs "
            "[136, 96]",
            "tensor model.layers.1.mlp.up_proj.weight is of int8, but the model needs float32",
            "the checkpoint lacks tensors for model.norm.weight",
            "the checkpoint has tensors that the model does not know: x",
        )

    def test_left_over(self, checkpoint: Path) -> None:
        edit(checkpoint, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(96), "score.weight": torch.zeros(2)})
        message = problem(checkpoint)
        assert "does not know" in message and "self_attn.q_proj.bias" in message and "score.weight" in message

    def test_a_long_list_is_cut(self, checkpoint: Path) -> None:
        edit(checkpoint, {f"extra.{i}": torch.zeros(1) for i in range(30)})
        assert "and 25 more" in problem(checkpoint)

    def test_other_shape(self, checkpoint: Path) -> None:
        edit(checkpoint, {"model.layers.2.mlp.down_proj.weight": torch.zeros(96, 100)})
        message = problem(checkpoint)
        assert "model.layers.2.mlp.down_proj.weight" in message and "[96, 100]" in message and "[96, 136]" in message

    @pytest.mark.parametrize(
        "dtype", [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64], ids=str
    )
    def test_numbers_that_are_not_the_weights(self, checkpoint: Path, dtype: torch.dtype) -> None:
        """A config.json that does not mention the quantization leaves no other sign of it."""
        edit(checkpoint, {"model.layers.2.mlp.down_proj.weight": torch.zeros(96, 136, dtype=dtype)})
        assert f"tensor model.layers.2.mlp.down_proj.weight is of {str(dtype)[6:]}" in problem(checkpoint)

    def test_experts_are_named_one_by_one(self, tmp_path: Path) -> None:
        make_checkpoint("qwen3_moe", tmp_path)
        experts = "model.layers.2.mlp.experts"
        edit(tmp_path, {f"{experts}.7.up_proj.weight": None, f"{experts}.0.down_proj.weight": None})
        message = problem(tmp_path)
        assert f"lacks tensors for {experts}.7.up_proj.weight, {experts}.0.down" in message
        edit(tmp_path, {f"{experts}.9.up_proj.weight": torch.zeros(64, 96)})
        assert f"does not know: {experts}.9.up_proj.weight" in problem(tmp_path)
        edit(tmp_path, {f"{experts}.7.up_proj.weight": torch.zeros(63, 96)})
        message = problem(tmp_path)
        assert f"{experts}.7.up_proj.weight has shape [63, 96]" in message and "[64, 96]" in message

    def test_a_computed_table_may_stand_there(self, checkpoint: Path) -> None:
        edit(checkpoint, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
        load(checkpoint)

    def test_names_without_the_prefix_are_as_good(self, checkpoint: Path) -> None:
        before = values(load(checkpoint))
        tensors = load_file(checkpoint / "model.safetensors")
        renamed = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        save_file(renamed, checkpoint / "model.safetensors")
        after = values(load(checkpoint))
        assert all(torch.equal(before[name], after[name]) for name in before)

    @pytest.mark.parametrize(
        ("family", "key"), [("llama", "hidden_act"), ("gemma3", "hidden_activation"), ("gpt2", "activation_function")]
    )
    def test_unknown_activation(self, family: str, key: str, tmp_path: Path) -> None:
        make_checkpoint(family, tmp_path, **{key: "sigmoid"})
        found = problem(tmp_path)
        assert "the activation 'sigmoid' is not supported; supported are silu" in found
        assert "hidden_act" not in found and "swigluoai" not in found


class TestDummy:
    def dummy(self, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> CausalLM:
        return load(folder, LoadConfig(load_format="dummy", seed=seed), dtype)

    def test_needs_no_weights_and_repeats_itself(self, checkpoint: Path) -> None:
        (checkpoint / "model.safetensors").unlink()
        first, second, other = (values(self.dummy(checkpoint, seed)) for seed in (1, 1, 2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not any(torch.equal(first[name], other[name]) for name in first)

    def test_values_keep_the_size_of_activations(self, checkpoint: Path) -> None:
        for name, parameter in weight_parameters(self.dummy(checkpoint, dtype=torch.bfloat16)).items():
            centre = 1.0 if "norm" in name else 0.0
            assert abs(parameter.float().mean().item() - centre) < 0.02
            assert 0.015 < parameter.float().std().item() < 0.025

    def test_experts_differ(self, tmp_path: Path) -> None:
        make_checkpoint("qwen3_moe", tmp_path)
        (tmp_path / "model.safetensors").unlink()
        experts = values(self.dummy(tmp_path))["layers.1.mlp.experts.w2_weight"]
        assert not torch.equal(experts[0], experts[1]) and 0.015 < experts.std().item() < 0.025

    def test_norms_of_one_plus_w_are_drawn_around_zero(self, tmp_path: Path) -> None:
        make_checkpoint("gemma2", tmp_path)
        model = self.dummy(tmp_path, dtype=torch.bfloat16)
        norms = [module for module in model.modules() if isinstance(module, PlusOneRMSNorm)]
        assert len(norms) == 4 * 3 + 1
        for norm in norms:
            assert abs(norm.weight.float().mean()) < 0.02
            assert torch.equal(norm.gain, 1 + norm.weight.float()) and norm.gain.dtype is torch.float32

    def test_layers_differ(self, checkpoint: Path) -> None:
        model = values(self.dummy(checkpoint))
        names = [f"layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]
        assert not torch.equal(model[names[0]], model[names[1]])


def test_files_of_torch_hold_the_same(checkpoint: Path) -> None:
    expected = values(load(checkpoint))
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    found = values(load(checkpoint, LoadConfig(load_format="pt")))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    with pytest.raises(ConfigError, match="no files for --load-format safetensors"):
        load(checkpoint, LoadConfig(load_format="safetensors"))
