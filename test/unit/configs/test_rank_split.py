"""Layers that ranks cannot share are named before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.layer_plan import AttentionPlan
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_split, check_stages
from mysglang.srt.errors import ConfigError


def config(family: str, folder: Path, **sizes: Any) -> ModelConfig:
    make_checkpoint(family, folder, **sizes)
    return ModelConfig.from_path(str(folder))


@pytest.mark.parametrize(
    ("family", "sizes", "ranks", "says"),
    [
        ("llama", {}, 4, "6 attention heads (num_attention_heads) cannot be divided among 4 ranks"),
        ("llama", {"num_attention_heads": 12, "num_key_value_heads": 4}, 6, "4 key-value heads (num_key_value_heads)"),
        ("llama", {"intermediate_size": 135}, 2, "an intermediate_size of 135 cannot be divided among 2 ranks"),
        ("qwen3_moe", {"moe_intermediate_size": 63}, 2, "a moe_intermediate_size of 63 cannot be divided"),
        ("qwen3_next", {"linear_num_key_heads": 3}, 2, "3 heads of linear attention (linear_num_key_heads)"),
        ("zamba2", {"intermediate_size": 135}, 2, "an intermediate_size of 135 cannot be divided among 2 ranks"),
        ("zamba2", {"num_key_value_heads": 6}, 4, "6 attention heads (num_attention_heads) cannot be divided"),
        ("bamba", {}, 4, "6 heads of mamba in 2 groups cannot be divided among 4 ranks"),
        ("falcon_h1", {"mamba_n_groups": 3}, 2, "6 heads of mamba in 3 groups cannot be divided"),
    ],
)
def test_sizes_are_named(family: str, sizes: dict[str, Any], ranks: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_split(config(family, tmp_path, **sizes), ranks)
    assert any(line.startswith(f"--tp-size {ranks}: ") and says in line for line in caught.value.problems)


def test_what_stages_do_not_pass_on_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_stages(config("gemma3n", tmp_path), 2)
    named = ("3 streams", "altup_num_inputs"), ("hidden_size_per_layer_input",), ("num_kv_shared_layers",)
    for words in named:
        assert any(all(word in line for word in words) for line in caught.value.problems)


def test_stages_do_not_share_blocks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--pp-size 2: several of its layers use the same weights .*num_mem_blocks"):
        check_stages(config("zamba2", tmp_path), 2)


def test_what_can_be_shared_is_shared(tmp_path: Path) -> None:
    """Two key-value heads over two ranks, or over six, each of which holds one."""
    model = config("llama", tmp_path, intermediate_size=132)
    for ranks in (1, 2, 6):
        check_split(model, ranks)


def test_a_kind_of_layer_that_nobody_split_is_refused(tmp_path: Path) -> None:
    class OtherAttention(AttentionPlan, frozen=True, kw_only=True):
        """A kind of its own."""

    model = config("llama", tmp_path)
    assert model.decoder is not None
    first = model.decoder.layers[0]
    attention = first.attention
    assert isinstance(attention, AttentionPlan)
    other = msgspec.structs.replace(first, attention=OtherAttention(**msgspec.structs.asdict(attention)))
    layers = (other, *model.decoder.layers[1:])
    changed = replace(model, decoder=msgspec.structs.replace(model.decoder, layers=layers))
    with pytest.raises(ConfigError, match="layers with a OtherAttention are not split over ranks"):
        check_split(changed, 2)
