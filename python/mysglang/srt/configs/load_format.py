"""The values of `--load-format`, one object each: how a model's files are found, and what is checked before processes
start.

Knows files and their headers, not tensors of torch. How a format fills a model is in `model_loader/loader.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mysglang.srt.configs.checkpoint_sizes import check_checkpoint
from mysglang.srt.configs.choices import LoadFormat, Quantization
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.saved_model import saved_model
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.checkpoint_files import NO_FILES, WeightSource, find_weights, stored_tensors
from mysglang.srt.utils.hf import is_url, resolve_model_path
from mysglang.srt.utils.late_import import at_first_call
from mysglang.srt.utils.sharded_state import check_sharded_state
from mysglang.srt.utils.weight_headers import StoredTensor


@dataclass(frozen=True, slots=True)
class WeightsUse:
    """How the server that is about to start uses the weights."""

    tp_size: int
    pp_size: int
    quantization: Quantization | None


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format of weights. This class is the null one: no file holds the weights, and nothing is checked."""

    name: LoadFormat

    @property
    def beside(self) -> WeightFormat:
        """The format of a draft model beside a model of this format."""
        return self

    def fetch(self, path: str, *, revision: str | None = None, download_dir: str | None = None) -> Path:
        """Returns the model's directory on this machine, downloaded if it is elsewhere. Raises ConfigError."""
        return resolve_model_path(path, revision=revision, download_dir=download_dir, load_format=self.name)

    def check(self, config: ModelConfig, use: WeightsUse) -> None:
        """Compares the files' headers with the model and its use. Raises ConfigError naming the field that differs."""

    def source(self, folder: Path) -> WeightSource:
        """Returns the local files with a checkpoint's names, from which weights can be read again by these names;
        `NO_FILES` if there are none. Raises ConfigError for missing files.
        """
        return NO_FILES

    def seed_used(self, seed: int) -> int | None:
        """Returns the seed if values depend on it; None if they do not."""
        return None


class DummyWeights(WeightFormat):
    """Random values, to measure speed without a checkpoint."""

    __slots__ = ()

    def seed_used(self, seed: int) -> int | None:
        return seed


class CheckpointWeights(WeightFormat):
    """The files of the model's directory. `auto`: those of the first format that is there."""

    __slots__ = ()

    def check(self, config: ModelConfig, use: WeightsUse) -> None:
        check_checkpoint(config, stored_tensors(Path(config.path), self.name))

    def source(self, folder: Path) -> WeightSource:
        return find_weights(folder, self.name)


class ShardedState(WeightFormat):
    """Files that `save_sharded_model` wrote, as each rank holds the model."""

    __slots__ = ()

    @property
    def beside(self) -> WeightFormat:
        return AUTO

    def check(self, config: ModelConfig, use: WeightsUse) -> None:
        if use.pp_size > 1:
            raise ConfigError(
                f"--pp-size {use.pp_size}: --load-format sharded_state is for one stage; leave --pp-size out."
            )
        check_sharded_state(Path(config.path), saved_model(config, use.tp_size, use.quantization))


_REMOTE_FILES = "mysglang.srt.utils.remote_files"
_fetch_url: Callable[[str, str | None], Path] = at_first_call(f"{_REMOTE_FILES}:fetch_url")
_remote_tensors: Callable[[Path], list[StoredTensor]] = at_first_call(f"{_REMOTE_FILES}:remote_tensors")


class RemoteWeights(WeightFormat):
    """Byte ranges of files behind a URL. Their headers are read once, by `fetch`, which notes them for the ranks."""

    __slots__ = ()

    @property
    def beside(self) -> WeightFormat:
        return AUTO

    def fetch(self, path: str, *, revision: str | None = None, download_dir: str | None = None) -> Path:
        return _fetch_url(path, download_dir)

    def check(self, config: ModelConfig, use: WeightsUse) -> None:
        check_checkpoint(config, _remote_tensors(Path(config.path)))


AUTO = CheckpointWeights("auto")
REMOTE = RemoteWeights("remote")

LOAD_FORMATS: Mapping[LoadFormat, WeightFormat] = {
    "auto": AUTO,
    "safetensors": CheckpointWeights("safetensors"),
    "pt": CheckpointWeights("pt"),
    "gguf": CheckpointWeights("gguf"),
    "sharded_state": ShardedState("sharded_state"),
    "remote": REMOTE,
    "dummy": DummyWeights("dummy"),
}
"""Every value of `--load-format`."""


def format_at(path: str, asked: LoadFormat) -> WeightFormat:
    """Returns the format of the model at `path`, for which `--load-format asked` was given: at a URL `auto` is
    `remote`. Raises ConfigError for a format that cannot be there.
    """
    if is_url(path):
        if asked not in ("auto", "remote"):
            raise ConfigError(f"--load-format {asked}: a URL is read with remote; leave --load-format out.")
        return REMOTE
    if asked == "remote":
        raise ConfigError("--load-format remote: --model-path must be a URL, such as s3://bucket/model.")
    return LOAD_FORMATS[asked]
