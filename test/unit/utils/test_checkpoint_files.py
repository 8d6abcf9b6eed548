"""Tensors in the headers of safetensors files, and the refusal of headers and indexes that claim too much."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils import checkpoint_files
from mysglang.srt.utils.checkpoint_files import INDEX, MAX_HEADERS, MAX_SHARDS, find_weights, stored_tensors
from mysglang.srt.utils.model_source import FolderSource

WHOLE = "model.safetensors"


def write(path: Path, header: bytes, data: bytes = b"", *, length: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        stored_tensors(folder)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_names_and_shapes_of_all_shards(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(())}, tmp_path / "1.safetensors", {"dtype": "a trap"})
    save_file({"c": torch.zeros(7, dtype=torch.int8)}, tmp_path / "2.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "1.safetensors", "c": "2.safetensors"}}))
    found = {tensor.name: (tensor.shape, tensor.num_values, tensor.file) for tensor in stored_tensors(tmp_path)}
    assert found == {
        "a": ((3, 5), 15, "1.safetensors"),
        "b": ((), 1, "1.safetensors"),
        "c": ((7,), 7, "2.safetensors"),
    }


@pytest.mark.promise(49)
def test_a_header_of_hostile_length_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / WHOLE, b"{}", length=MAX_HEADERS + 1)
    os.truncate(tmp_path / WHOLE, 1 << 40)
    assert f"{WHOLE}: its header would have {MAX_HEADERS + 1} bytes" in refusal(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize("content", [b"<html>Not found</html>", b"\xff" * 100, b"{}", b""])
def test_bytes_that_are_no_weights(tmp_path: Path, content: bytes) -> None:
    """Their first eight bytes are a length far beyond the file."""
    (tmp_path / WHOLE).write_bytes(content)
    assert f"{WHOLE} is damaged or incomplete (it ends within its header)" in refusal(tmp_path)


@pytest.mark.parametrize("name", [WHOLE, "pytorch_model.bin", "model.gguf"])
def test_a_pointer_of_git_lfs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1231512\n")
    assert f"{name} is only a pointer of Git LFS to the file; get the file itself with `git lfs pull`" in refusal(
        tmp_path
    )


def test_headers_have_one_limit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        save_file({f"t{number}": torch.zeros(2)}, tmp_path / f"{number}.safetensors")
    monkeypatch.setattr(checkpoint_files, "MAX_HEADERS", 100)
    assert "2.safetensors: its header would have" in refusal(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    "header",
    [
        b"{" * 100_000,
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
        b'{"\xff": {}}',
        b"",
    ],
)
def test_a_damaged_header(tmp_path: Path, header: bytes) -> None:
    write(tmp_path / WHOLE, header, b"1234")
    assert f"{WHOLE} is damaged or incomplete" in refusal(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("dtype", "shape", "place"),
    [
        ("F32", [1], [4, 0]),
        ("F32", [2], [0, 4]),
        ("F32", [1 << 62, 4], [0, 4]),
        ("I64", [1], [0, 4]),
        ("X", [1], [4, 0]),
    ],
)
def test_a_tensor_that_does_not_fill_its_place(tmp_path: Path, dtype: str, shape: list[int], place: list[int]) -> None:
    tensors = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    tensors["b"] = {"dtype": dtype, "shape": shape, "data_offsets": place}
    write(tmp_path / WHOLE, json.dumps(tensors).encode(), b"1234")
    assert f"{WHOLE} is damaged or incomplete (tensor b, {dtype}" in refusal(tmp_path)


@pytest.mark.promise(49)
def test_more_tensors_than_any_checkpoint_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "MAX_TENSORS", 10)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write(tmp_path / WHOLE, json.dumps({f"t{number}": empty for number in range(11)}).encode())
    assert "holds more than 10 tensors" in refusal(tmp_path)


@pytest.mark.promise(49)
def test_an_index_of_very_many_files(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(10**5)}}))
    assert f"{INDEX} names {10**5} files, and at most {MAX_SHARDS} are read" in refusal(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize("name", [WHOLE, INDEX, "1.safetensors"])
def test_a_pipe_in_place_of_the_weights(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} is a pipe"):
        find_weights(tmp_path)


@pytest.mark.parametrize("beside", [(), (WHOLE,), ("model-00001-of-00001.safetensors",)], ids=str)
def test_an_adapter_is_no_model(beside: tuple[str, ...], tmp_path: Path) -> None:
    """Neither alone, nor beside the weights of its base, which transformers would serve with it."""
    for name in ("adapter_model.safetensors", *beside):
        save_file({"base_model.model.lora_A.weight": torch.zeros(2, 2)}, tmp_path / name)
    with pytest.raises(ConfigError, match=r"LoRA adapter \(adapter_model.safetensors\).*merge_and_unload"):
        find_weights(tmp_path)


def test_an_adapter_without_a_config(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is a LoRA adapter, .*merge_and_unload"):
        FolderSource(tmp_path).config()
