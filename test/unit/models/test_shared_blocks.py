"""Blocks of weights that several layers use: a checkpoint may have a copy for each use."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.transformers_pair import SCENARIOS, check_scenario, load_pair
from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.utils.checkpoint_files import stored_tensors


def test_a_block_is_loaded_once(tmp_path: Path) -> None:
    """Files may have a copy of a shared block for each of its uses. The copies must be equal, and one is kept."""
    pair = load_pair("zamba2", tmp_path, torch.float32)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    assert sum(each.numel() for each in pair.ours.parameters()) == sum(each.numel() for each in tensors.values())
    first, last = "model.layers.2.shared_transformer", "model.layers.4.shared_transformer"
    copies = {name.replace(first, last): each.clone() for name, each in tensors.items() if first in name}
    assert len(copies) > 10
    save_file({**tensors, **copies}, path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    check_checkpoint(config, stored_tensors(tmp_path))
    ours = load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
    assert len(list(ours.parameters())) == len(list(pair.ours.parameters()))
    check_scenario(replace(pair, ours=ours), SCENARIOS[0], page_size=16)
    other = f"{last}.feed_forward.down_proj.weight"
    save_file({**tensors, **copies, other: copies[other] + 1}, path)
    with pytest.raises(ConfigError, match=f"{other} differs"):
        load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)
