"""Finding and checking safetensors files: whole, in shards, missing, damaged; and reading them in order."""

import json
import logging
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mysglang.srt.configs.load_format import LOAD_FORMATS
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.weight_files import SafetensorsFile, open_weight_files, read_weights
from mysglang.srt.utils.checkpoint_files import INDEX, TORCH_INDEX

SHAPES = {"matrix": (3, 5), "vector": (7,), "scalar": (), "nothing": (0, 4)}


def save(path: Path, *names: str) -> None:
    save_file({name: torch.full((3, 5), float(len(name))) for name in names}, path)


def save_sharded(folder: Path) -> None:
    save(folder / "model-1-of-2.safetensors", "a", "bb")
    save(folder / "model-2-of-2.safetensors", "ccc")
    weight_map = {"a": "model-1-of-2.safetensors", "bb": "model-1-of-2.safetensors", "ccc": "model-2-of-2.safetensors"}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int16", "uint8", "float8_e4m3fn", "complex64"])
def test_the_header_says_how_long_a_tensor_is(tmp_path: Path, dtype: str) -> None:
    save_file({name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, shape in SHAPES.items()}, tmp_path / "a")
    file = SafetensorsFile(tmp_path / "a")
    assert {name: file.stored_bytes(name) for name in SHAPES} == {name: file.read(name).nbytes for name in SHAPES}


def names_in(folder: Path) -> list[str]:
    return [name for file in open_weight_files(folder) for name in file.names]


class TestFinding:
    def test_one_file(self, tmp_path: Path) -> None:
        save(tmp_path / "model.safetensors", "a", "bb")
        save(tmp_path / "other.safetensors", "x")
        assert names_in(tmp_path) == ["a", "bb"]

    def test_shards_with_an_index(self, tmp_path: Path) -> None:
        save_sharded(tmp_path)
        save(tmp_path / "consolidated.safetensors", "x")
        assert names_in(tmp_path) == ["a", "bb", "ccc"]

    def test_shards_without_an_index(self, tmp_path: Path) -> None:
        save_sharded(tmp_path)
        save(tmp_path / "consolidated.safetensors", "x")
        (tmp_path / INDEX).unlink()
        assert names_in(tmp_path) == ["a", "bb", "ccc"]

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"holds no safetensors, \*.bin or \*.gguf files; .*--load-format dummy"):
            open_weight_files(tmp_path)

    def test_files_of_torch_are_read_if_there_are_no_others(self, tmp_path: Path) -> None:
        torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
        torch.save({"x": torch.ones(2)}, tmp_path / "optimizer.pt")
        assert names_in(tmp_path) == ["a"]
        (file,) = open_weight_files(tmp_path)
        header = file.header("a")
        assert (header.shape, header.dtype, header.is_meta) == ((2,), torch.float32, True)
        save(tmp_path / "model.safetensors", "bb")
        assert names_in(tmp_path) == ["bb"]
        assert [file.names for file in open_weight_files(tmp_path, LOAD_FORMATS["pt"])] == [["a"]]
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match="holds no files for --load-format safetensors"):
            open_weight_files(tmp_path, LOAD_FORMATS["safetensors"])

    def test_shards_of_torch_with_an_index(self, tmp_path: Path) -> None:
        weight_map = {}
        for name in ("a", "bb"):
            torch.save({name: torch.full((2,), float(len(name)))}, tmp_path / f"{name}.bin")
            weight_map[name] = f"{name}.bin"
        torch.save({"x": torch.ones(2)}, tmp_path / "other.bin")
        (tmp_path / TORCH_INDEX).write_text(json.dumps({"weight_map": weight_map}))
        found = dict(read_weights(open_weight_files(tmp_path), show_progress=False))
        assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [1.0, 1.0], "bb": [2.0, 2.0]}
        (tmp_path / "bb.bin").unlink()
        with pytest.raises(ConfigError, match=r"bb.bin is missing"):
            open_weight_files(tmp_path)


class TestFaults:
    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        save_sharded(tmp_path)
        (tmp_path / "model-2-of-2.safetensors").unlink()
        with pytest.raises(ConfigError, match=r"model-2-of-2.safetensors is missing"):
            open_weight_files(tmp_path)

    @pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
    def test_an_index_without_a_map(self, tmp_path: Path, content: str) -> None:
        (tmp_path / INDEX).write_text(content)
        with pytest.raises(ConfigError, match="no weight_map"):
            open_weight_files(tmp_path)

    @pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", ""])
    def test_an_index_that_leads_elsewhere(self, tmp_path: Path, name: str) -> None:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ConfigError, match=r"not a file of the model.s directory|is missing"):
            open_weight_files(tmp_path)

    @pytest.mark.parametrize("kept", [0, 4, 40, -8, -1])
    def test_a_truncated_file_is_named(self, tmp_path: Path, kept: int) -> None:
        save_sharded(tmp_path)
        path = tmp_path / "model-2-of-2.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(ConfigError, match=r"model-2-of-2.safetensors is damaged or incomplete"):
            open_weight_files(tmp_path)

    def test_a_pointer_in_place_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        )
        with pytest.raises(ConfigError, match="only a pointer of Git LFS"):
            open_weight_files(tmp_path)

    @pytest.mark.promise(39)
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(at=st.integers(0, 150), byte=st.integers(0, 255))
    def test_any_damage_to_the_header_is_found_or_harmless(self, tmp_path: Path, at: int, byte: int) -> None:
        path = tmp_path / "model.safetensors"
        save(path, "a", "bb")
        content = bytearray(path.read_bytes())
        content[at] = byte
        path.write_bytes(content)
        try:
            files = open_weight_files(tmp_path)
        except ConfigError as error:
            assert "model.safetensors" in str(error)
        else:
            for _, tensor in read_weights(files, show_progress=False):
                assert tensor.nbytes <= 2 * 3 * 5 * 4


class TestReading:
    def test_all_in_order(self, tmp_path: Path) -> None:
        save_sharded(tmp_path)
        files = open_weight_files(tmp_path)
        found = list(read_weights(files, show_progress=False))
        assert [name for name, _ in found] == ["a", "bb", "ccc"]
        for name, tensor in found:
            assert tensor.tolist() == [[float(len(name))] * 5] * 3

    def test_may_be_left_early(self, tmp_path: Path) -> None:
        save_sharded(tmp_path)
        weights = read_weights(open_weight_files(tmp_path), show_progress=False)
        assert next(weights)[0] == "a"
        weights.close()

    def test_reports_each_file_where_there_is_no_terminal(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        save_sharded(tmp_path)
        with caplog.at_level(logging.INFO):
            list(read_weights(open_weight_files(tmp_path), show_progress=True))
        assert caplog.messages == [
            "Loaded model-1-of-2.safetensors (1 of 2).",
            "Loaded model-2-of-2.safetensors (2 of 2).",
        ]
