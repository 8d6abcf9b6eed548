"""Load formats: which have a checkpoint's files, what a draft model is read by, and that every name has its objects."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.choices import LoadFormat
from mysglang.srt.configs.load_format import LOAD_FORMATS, WeightsUse, format_at
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.loader import FILLERS
from mysglang.srt.model_loader.weight_files import open_weight_files
from mysglang.srt.utils.checkpoint_files import NO_FILES


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("formats") / "checkpoint"
    make_checkpoint("llama", path)
    return path


def test_every_name_has_its_objects() -> None:
    names = set(get_args(LoadFormat))
    assert names == LOAD_FORMATS.keys() == FILLERS.keys()
    assert all(weights.name == name for name, weights in LOAD_FORMATS.items())
    # A draft is read by a format that can be anywhere.
    assert {name: weights.beside.name for name, weights in LOAD_FORMATS.items() if weights.beside is not weights} == {
        "sharded_state": "auto",
        "remote": "auto",
    }


LOCAL: tuple[LoadFormat, ...] = ("auto", "safetensors")
ABSENT: tuple[LoadFormat, ...] = ("pt", "gguf")
OTHERS: tuple[LoadFormat, ...] = ("sharded_state", "remote", "dummy")


def test_which_have_files_of_a_checkpoint(checkpoint: Path) -> None:
    for name in LOCAL:
        source = LOAD_FORMATS[name].source(checkpoint)
        assert source.format == "safetensors" and source.paths
    for name in ABSENT:
        with pytest.raises(ConfigError, match=f"no files for --load-format {name}"):
            LOAD_FORMATS[name].source(checkpoint)
    for name in OTHERS:
        assert LOAD_FORMATS[name].source(checkpoint) is NO_FILES
        assert open_weight_files(checkpoint, LOAD_FORMATS[name]) == []


def test_only_dummy_values_depend_on_the_seed() -> None:
    assert {name: weights.seed_used(7) for name, weights in LOAD_FORMATS.items()} == {
        **dict.fromkeys(LOAD_FORMATS),
        "dummy": 7,
    }


def test_checks_before_the_start(checkpoint: Path) -> None:
    config, alone = ModelConfig.from_path(str(checkpoint)), WeightsUse(tp_size=1, pp_size=1, quantization=None)
    for name in LOCAL:
        LOAD_FORMATS[name].check(config, alone)
    LOAD_FORMATS["dummy"].check(config, alone)
    with pytest.raises(ConfigError, match="no files for --load-format pt"):
        LOAD_FORMATS["pt"].check(config, alone)
    with pytest.raises(ConfigError, match=r"--pp-size \d: --load-format sharded_state is for one stage"):
        LOAD_FORMATS["sharded_state"].check(config, WeightsUse(tp_size=1, pp_size=2, quantization=None))


@pytest.mark.parametrize(
    ("path", "asked", "found"),
    [
        ("/models/a", "auto", "auto"),
        ("/models/a", "sharded_state", "sharded_state"),
        ("s3://bucket/a", "auto", "remote"),
        ("s3://bucket/a", "remote", "remote"),
    ],
)
def test_a_url_is_read_with_remote(path: str, asked: LoadFormat, found: str) -> None:
    assert format_at(path, asked).name == found
