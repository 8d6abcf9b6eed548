"""Scales of stored keys and values: every name by which checkpoints call them, and files that say them beside."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.kv_scales import checkpoint_scales, file_scales

LAYER = "model.layers.{}.self_attn."


def checkpoint(folder: Path, **scales: Any) -> Path:
    """A checkpoint with these tensors; `__` in a name stands for a dot after the layer's name."""
    tensors = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in scales.items()}
    save_file(tensors | {"model.layers.0.self_attn.k_proj.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
    ],
)
def test_names(key: str, value: str, tmp_path: Path) -> None:
    names = {LAYER.format(layer) + name: scale for layer in (0, 12) for name, scale in ((key, 0.5), (value, [0.25]))}
    assert checkpoint_scales(checkpoint(tmp_path, **names)) == {0: (0.5, 0.25), 12: (0.5, 0.25)}


def test_one_scale_is_for_both(tmp_path: Path) -> None:
    scales = {LAYER.format(0) + "kv_scale": 0.5, LAYER.format(1) + "v_scale": 2.0}
    scales |= {LAYER.format(2) + "kv_scale": 0.5, LAYER.format(2) + "k_scale": 4.0}
    assert checkpoint_scales(checkpoint(tmp_path, **scales)) == {0: (0.5, 0.5), 1: (2.0, 2.0), 2: (4.0, 0.5)}


def test_other_tensors_are_no_scales(tmp_path: Path) -> None:
    others = ("q_scale", "k_proj.v_scale", "q_proj.output_scale", "k_proj.weight_scale", "k_proj.k_scale.x")
    assert checkpoint_scales(checkpoint(tmp_path, **{LAYER.format(0) + name: 1.0 for name in others})) == {}


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (0.0, "is 0.0; a scale"),
        (-1.0, "must be a positive number"),
        (float("nan"), "is nan"),
        ([1.0, 2.0], "has 2 numbers"),
    ],
)
def test_wrong_ones_are_refused_by_name(scale: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"tensor model\.layers\.3\.self_attn\.k_scale .*{said}|{said}") as error:
        checkpoint_scales(checkpoint(tmp_path, **{LAYER.format(3) + "k_scale": scale}))
    assert "model.layers.3.self_attn.k_scale" in str(error.value)


def written(folder: Path, dtype: str = "float8_e4m3fn", factors: Any = None) -> Path:
    path = folder / "scales.json"
    factors = {"0": {"0": 0.5, "1": 0.25}} if factors is None else factors
    path.write_text(json.dumps({"model_type": "llama", "kv_cache": {"dtype": dtype, "scaling_factor": factors}}))
    return path


def test_a_file(tmp_path: Path) -> None:
    assert file_scales(written(tmp_path), rank=0, num_ranks=1, num_layers=2) == {0: (0.5, 0.5), 1: (0.25, 0.25)}
    two = {"0": {"0": 0.5}, "1": {"0": 3}}
    assert file_scales(written(tmp_path, factors=two), rank=1, num_ranks=2, num_layers=1) == {0: (3.0, 3.0)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"dtype": "float8_e5m2"}, "dtype is float8_e5m2"),
        ({"factors": {"1": {"0": 1, "1": 1}}}, "has ranks"),
        ({"factors": {"0": {"0": 1}}}, "has 1 layers; the model has layers 0 to 1"),
        ({"factors": {"0": {"0": 1, "1": -2}}}, "factor of layer 1 is -2.0"),
        ({"factors": {"0": {"0": 1, "1": "x"}}}, "must be a number, not a text"),
        ({"factors": []}, "must be an object, not a list"),
    ],
)
def test_wrong_files_are_refused(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        file_scales(written(tmp_path, **content), rank=0, num_ranks=1, num_layers=2)
    assert "--quantization-param-path" in str(error.value)
