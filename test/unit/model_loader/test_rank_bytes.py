"""A rank reads its own bytes of a checkpoint, and the ranks together read the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, SoloGroup
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.model_loader import loader

# Nearly all of the file is the three matrices of the MLP: two split by rows, one by columns.
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 1 << 13,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("wide")
    make_checkpoint("llama", path, **SIZES)
    return path


def load(folder: Path, tp: SoloGroup | ThreadGroup) -> dict[str, Tensor]:
    config = ModelConfig.from_path(str(folder), dtype="float32")
    model = loader.load_model(config, LoadConfig(), torch.device("cpu"), torch.float32, tp=tp)
    return dict(model.named_parameters())


def share_read(folder: Path, tp: SoloGroup | ThreadGroup, monkeypatch: pytest.MonkeyPatch) -> float:
    """Load a rank's part; the share of the file's bytes that were copied out of the mapped file."""
    read = 0
    parts = WeightParameter._parts

    def counted(self: WeightParameter, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal read
        for target, source in parts(self, tensor, section):
            assert source.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr(), "a copy was read"
            read += 0 if source.is_meta else source.nbytes
            yield target, source

    with monkeypatch.context() as patch:
        patch.setattr(WeightParameter, "_parts", counted)
        load(folder, tp)
    return read / (folder / "model.safetensors").stat().st_size


def test_each_of_two_ranks_reads_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.99 < share_read(folder, SOLO, monkeypatch) <= 1
    parts = [share_read(folder, ThreadGroup.apart(rank, 2), monkeypatch) for rank in range(2)]
    # Norms are on both.
    assert all(0.495 < part < 0.51 for part in parts), parts


def test_parts_are_the_whole(folder: Path) -> None:
    """The ranks' parts of matrices split by columns are the whole matrix, and each has all of a norm."""
    whole, (first, second) = load(folder, SOLO), run_on_ranks(2, lambda tp: load(folder, tp))
    for name in ("layers.0.mlp.down_proj.weight", "layers.0.self_attn.o_proj.weight"):
        assert torch.equal(torch.cat([first[name], second[name]], dim=1), whole[name])
    assert torch.equal(first["norm.weight"], whole["norm.weight"])
    assert torch.equal(second["norm.weight"], whole["norm.weight"])
