"""A model that its ranks saved is read again by as many ranks, and by no other server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.saved_model import saved_model
from mysglang.srt.distributed.groups import SOLO, SoloGroup
from mysglang.srt.entrypoints.weight_commands import copy_config, shard_place
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.model_loader.sharded_state import save_shard, split_parts
from mysglang.srt.model_loader.weight_update import WeightUpdate
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.utils.checkpoint_files import stored_tensors
from mysglang.srt.utils.sharded_state import (
    DEFAULT_PATTERN,
    LAYOUT,
    Label,
    SavedModel,
    ShardPlace,
    check_sharded_state,
)
from mysglang.srt.utils.weight_headers import SHARD_LABEL

CPU = torch.device("cpu")
SAVED = LoadConfig(load_format="sharded_state")
SMALL = 1 << 14
"""Bytes of a file: a tiny model takes several."""


def load(
    folder: Path, load: LoadConfig = SAVED, tp: SoloGroup | ThreadGroup = SOLO, dtype: str = "float32"
) -> CheckpointModel:
    return load_model(ModelConfig.from_path(str(folder), dtype=dtype), load, CPU, getattr(torch, dtype), tp=tp)


def values(model: CheckpointModel) -> dict[str, Tensor]:
    return WeightUpdate(model).host_copy()


def tick() -> None:
    """A sign of life."""


def save(model: CheckpointModel, path: Path, rank: int = 0, tp_size: int = 1, max_size: int | None = None) -> int:
    label = Label(saved="one", model=saved_model(model.config, tp_size, None), rank=rank, part=0, parts=1)
    place = ShardPlace(path=str(path), pattern=DEFAULT_PATTERN, max_size=max_size, saved="one")
    return save_shard(WeightUpdate(model), place, label, tick)


def saved_from(checkpoint: Path, path: Path, tp_size: int, max_size: int | None = SMALL) -> list[dict[str, Tensor]]:
    """Saves the checkpoint from so many ranks. Returns the values of each rank."""
    copy_config(checkpoint, path)

    def work(tp: SoloGroup | ThreadGroup) -> dict[str, Tensor]:
        model = load(checkpoint, LoadConfig(), tp)
        save(model, path, tp.rank, tp_size, max_size)
        return values(model)

    return [work(SOLO)] if tp_size == 1 else run_on_ranks(tp_size, work)


def label_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        label: dict[str, Any] = json.loads(file.metadata()[SHARD_LABEL])
    return label


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], object], **label: object) -> None:
    """Writes the file again, with other tensors or another label."""
    tensors, told = load_file(path), label_of(path) | label
    change(tensors)
    save_file(tensors, path, metadata={SHARD_LABEL: json.dumps(told)})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sharded") / "checkpoint"
    make_checkpoint("qwen3", path, tie_word_embeddings=True)
    return path


@pytest.fixture(scope="module")
def of_two(checkpoint: Path) -> Path:
    path = checkpoint.parent / "of_two"
    path.mkdir()
    saved_from(checkpoint, path, 2)
    return path


@pytest.fixture
def two(of_two: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(of_two, tmp_path / "two"))


# Padded tables, packed experts, states: what a parameter may be beside rows of one tensor.
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3_next"])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_ranks_get_what_they_saved(family: str, tp_size: int, tmp_path: Path) -> None:
    sizes = {"linear_num_key_heads": 4, "linear_num_value_heads": 8} if family == "qwen3_next" else {}
    make_checkpoint(family, tmp_path / "checkpoint", **sizes)
    (path := tmp_path / "saved").mkdir()
    expected = saved_from(tmp_path / "checkpoint", path, tp_size)
    assert len(list(path.glob("model-rank-*-part-1.safetensors"))) == tp_size, "no rank wrote several files"
    for rank in range(tp_size):
        found = values(load(path, tp=ThreadGroup.apart(rank, tp_size) if tp_size > 1 else SOLO))
        assert found.keys() == expected[rank].keys()
        assert all(torch.equal(found[name], value) for name, value in expected[rank].items())


def test_logits_are_the_same(checkpoint: Path, tmp_path: Path) -> None:
    """The values are taken after they were packed for a CPU, and packed again."""
    copy_config(checkpoint, tmp_path)
    model = load(checkpoint, LoadConfig(), dtype="bfloat16")
    assert save(model, tmp_path) == 1
    again = load(tmp_path, dtype="bfloat16")
    hidden = torch.randn(3, model.config.hidden_size, dtype=torch.bfloat16)
    assert torch.equal(model.compute_logits(hidden), again.compute_logits(hidden))  # type: ignore[operator]


def test_files_hold_what_fits() -> None:
    sizes = {"a": 4, "b": 4, "c": 9, "d": 1}
    assert split_parts(sizes, None) == [["a", "b", "c", "d"]]
    assert split_parts(sizes, 8) == [["a", "b"], ["c"], ["d"]]
    assert split_parts(sizes, 1) == [["a"], ["b"], ["c"], ["d"]]


OF_TWO = SavedModel(architecture="Qwen3ForCausalLM", tp_size=2, dtype="float32", layout=LAYOUT)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"tp_size": 1}, "tp_size: .* was saved with 2, and this server has 1; set --tp-size"),
        ({"dtype": "bfloat16"}, "dtype: .* float32, .* bfloat16; set --dtype"),
        ({"quantization": "int8wo"}, "quantization: .* none, .* int8wo; set --quantization"),
        ({"architecture": "LlamaForCausalLM"}, "architecture: .* Qwen3ForCausalLM, .* LlamaForCausalLM$"),
        ({"layout": LAYOUT + 1}, "layout: .*, which keeps parameters in another order; save the model again"),
    ],
)
def test_another_server_is_refused(wanted: dict[str, Any], message: str, of_two: Path) -> None:
    check_sharded_state(of_two, OF_TWO)
    with pytest.raises(ConfigError, match=message):
        check_sharded_state(of_two, replace(OF_TWO, **wanted))


def test_a_rank_refuses_options_that_differ(of_two: Path) -> None:
    with pytest.raises(ConfigError, match=r"^tp_size: "):
        load(of_two)
    with pytest.raises(ConfigError, match=r"^quantization: "):
        load(of_two, LoadConfig(load_format="sharded_state", quantization="int8wo"), ThreadGroup.apart(0, 2))


DAMAGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a part is missing": (lambda first, _: first.unlink(), r"part: .* lacks part 0 of \d+ of rank 0"),
    "a rank is missing": (
        lambda first, _: [each.unlink() for each in first.parent.glob("model-rank-1-*")],
        "part: .* lacks part 0 of rank 1",
    ),
    "a part stands there twice": (
        lambda first, _: shutil.copyfile(first, first.with_name("copy.safetensors")),
        "part: .* and .* are both part 0 of rank 0",
    ),
    "two saves": (lambda first, _: rewrite(first, len, saved="two"), "saved: .* are of different saves"),
    "no such rank": (lambda first, _: rewrite(first, len, rank=2), "part: .* says part 0 of .* of rank 2"),
    "no such part": (lambda first, _: rewrite(first, len, part=-1), "part: .* says part -1"),
    "a damaged label": (lambda first, _: rewrite(first, len, part="x"), "damaged label .*part"),
    "no label": (lambda first, _: save_file(load_file(first), first), "no label .*Other servers' sharded states"),
    "a cut file": (lambda first, _: first.write_bytes(first.read_bytes()[:-3]), "damaged or incomplete"),
    "an endless header": (lambda first, _: first.write_bytes(b"\xff" * 8), "it ends within its header"),
    "an unknown tensor": (
        lambda first, _: rewrite(first, lambda tensors: tensors.update({"layers.9.x": torch.ones(1)})),
        "tensors that the model does not know: layers.9.x",
    ),
    "a tensor is missing": (
        lambda first, _: rewrite(first, lambda tensors: tensors.pop("embed_tokens.weight")),
        "the sharded state lacks embed_tokens.weight",
    ),
    "a tensor stands there twice": (
        lambda first, second: rewrite(second, lambda tensors: tensors.update(load_file(first))),
        "is in two files",
    ),
    "another dtype": (
        lambda first, _: rewrite(first, lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()})),
        "tensor .* is of dtype float16, but the model needs float32",
    ),
    "another shape": (
        lambda first, _: rewrite(first, lambda tensors: tensors.update({n: t[:-1] for n, t in tensors.items()})),
        "tensor .* has shape .*, but this rank needs",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused(damage: str, two: Path) -> None:
    change, message = DAMAGES[damage]
    change(two / DEFAULT_PATTERN.format(rank=0, part=0), two / DEFAULT_PATTERN.format(rank=0, part=1))
    with pytest.raises(ConfigError, match=message):
        load(two, tp=ThreadGroup.apart(0, 2))


def test_a_checkpoint_and_a_sharded_state_are_not_confused(checkpoint: Path, of_two: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no label"):
        check_sharded_state(checkpoint, OF_TWO)
    with pytest.raises(ConfigError, match="holds no files for --load-format sharded_state"):
        check_sharded_state(tmp_path, OF_TWO)
    with pytest.raises(ConfigError, match="read it with --load-format sharded_state"):
        stored_tensors(of_two)
    assert SAVED.format.beside.name == "auto"


def test_rounded_weights_are_not_saved(checkpoint: Path, tmp_path: Path) -> None:
    model = saved_model(ModelConfig.from_path(str(checkpoint)), 1, "int8wo")
    label = Label(saved="one", model=model, rank=0, part=0, parts=1)
    place = ShardPlace(path=str(tmp_path), pattern=DEFAULT_PATTERN, max_size=None, saved="one")
    with pytest.raises(ConfigError, match="quantization: weights rounded to int8wo cannot be saved"):
        save_shard(WeightUpdate(load(checkpoint, LoadConfig())), place, label, tick)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path: .* cannot be written"):
        save(load(checkpoint, LoadConfig()), tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"pattern": "model-{rank}.safetensors"}, "pattern"),
        ({"pattern": "../{rank}-{part}.safetensors"}, "pattern"),
        ({"pattern": "{rank}-{part}.bin"}, "pattern"),
        ({"max_size": 0}, "max_size"),
        ({"path": "file"}, "path"),
        ({"path": "full"}, "path"),
    ],
)
def test_a_place_is_checked(fields: dict[str, Any], param: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "model.safetensors").touch()
    asked: dict[str, Any] = {"path": "new", "pattern": None, "max_size": None} | fields
    with pytest.raises(InvalidRequest, match=f"^{param}: ") as refused:
        shard_place(**asked | {"path": tmp_path / asked["path"]})
    assert refused.value.param == param


def test_names_follow_the_pattern(tmp_path: Path) -> None:
    place = shard_place(tmp_path / "new", "r{rank}p{part}.safetensors", None)
    assert place.file(3, 12) == tmp_path / "new" / "r3p12.safetensors"
    assert shard_place(tmp_path / "new", None, 5).pattern == DEFAULT_PATTERN


def test_config_is_copied_without_an_index(tmp_path: Path) -> None:
    model, path = tmp_path / "model", tmp_path / "saved"
    (model / "1_Pooling").mkdir(parents=True)
    path.mkdir()
    names = ["config.json", "1_Pooling/config.json", "chat_template.jinja"]
    for name in [*names, "model.safetensors.index.json", "model.safetensors"]:
        (model / name).write_text(name)
    copy_config(model, path)
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) == sorted(names)
    with pytest.raises(InvalidRequest, match="is one file"):
        copy_config(model / "model.safetensors", path)
