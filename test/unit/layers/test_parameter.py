"""Parameters that are stacked after loading: one tensor, whose parts load and change as before."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.tiny_checkpoints import FAMILIES, save_random
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.layers.parameter import WeightParameter, stack
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.weight_update import WeightUpdate, checkpoint_tensors
from mysglang.srt.models.checkpoint_model import TokenModel


def parameters(*rows: int) -> list[WeightParameter]:
    made = [WeightParameter((each, 3), dtype=torch.float32) for each in rows]
    for number, parameter in enumerate(made):
        parameter.load(torch.full(tuple(parameter.shape), float(number)))
    return made


@pytest.mark.parametrize("inference", [False, True])
def test_one_tensor_of_all_rows(inference: bool) -> None:
    parts = parameters(4, 2, 1)
    with torch.inference_mode(inference):
        whole = stack(parts)
        assert whole[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 2]
    parts[1].load(torch.full((2, 3), 7.0))
    assert whole[:, 0].tolist() == [0, 0, 0, 0, 7, 7, 2]
    assert sum(part.nbytes for part in parts) == parts[0].untyped_storage().nbytes()


def test_what_is_stacked_stays_where_it_is() -> None:
    parts = parameters(4, 2, 1)
    whole = stack(parts)
    again = stack(parts)
    assert again.data_ptr() == whole.data_ptr() and torch.equal(again, whole)
    # A part of it, too, and another order is another tensor.
    assert stack(parts[1:]).data_ptr() == parts[1].data_ptr()
    assert stack(parts[::-1])[:, 0].tolist() == [2, 1, 1, 0, 0, 0, 0]


def test_neighbours_in_memory_that_are_no_parts_of_one_tensor() -> None:
    """A row that lies behind, but is not the next one, and one that is spread."""
    memory = torch.arange(30.0).view(10, 3)
    one, gap, spread = (torch.nn.Parameter(each) for each in (memory[:2], memory[3:4], memory[:, :1].expand(-1, 3)[4:]))
    assert stack([one, gap])[:, 0].tolist() == [0, 3, 9]
    assert stack([gap, spread])[:, 0].tolist() == [9, 12, 15, 18, 21, 24, 27]


@pytest.mark.parametrize("tied", [False, True])
def test_memory_that_is_released_and_reserved_again(tied: bool, tmp_path: Path) -> None:
    model = load(tmp_path, tied)
    update, before = WeightUpdate(model), checksum(model)
    named = dict(model.named_parameters())
    parts = [named[f"lm.model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    stack(parts)
    assert checksum(model) == before
    update.release()
    assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) == 0
    update.reserve()
    update.apply(update.plan(checkpoint_tensors(tmp_path), whole=True), lambda: None)
    assert checksum(model) == before
    address = parts[0].data_ptr()
    assert stack(parts).data_ptr() == address and checksum(model) == before
    host = update.host_copy()
    update.release()
    update.reserve()
    update.put_back(host)
    assert checksum(model) == before


def load(folder: Path, tied: bool) -> TokenModel:
    save_random(FAMILIES["llama"](tie_word_embeddings=tied), folder)
    config = ModelConfig.from_path(str(folder), dtype="float32", impl="transformers")
    return load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)


def checksum(model: TokenModel) -> list[float]:
    def total(values: Tensor) -> float:
        return float((values.double().flatten() * torch.arange(1, values.numel() + 1)).sum())

    return [total(tensor) for _, tensor in WeightUpdate(model).tensors()]
