"""A model behind a URL: what is fetched, which bytes each rank reads, and what is said of a connection that is cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.thread_group import ThreadGroup
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SOLO, SoloGroup
from mysglang.srt.entrypoints.launcher import find_model
from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader import remote
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware
from mysglang.srt.utils.hf import REMOTE_NOTE, is_url
from mysglang.srt.utils.remote_files import (
    ATTEMPTS,
    RemoteFolder,
    fetch_config,
    read_note,
)

CPU = torch.device("cpu")
REMOTE = LoadConfig(load_format="remote")
WIDE = {"hidden_size": 64, "intermediate_size": 1 << 13, "num_hidden_layers": 1, "num_attention_heads": 4}
"""Nearly all of the file is the three matrices of the MLP."""


def still(_: float) -> None:
    """Does not wait."""


def load(folder: Path, load: LoadConfig = REMOTE, tp: SoloGroup | ThreadGroup = SOLO) -> dict[str, Tensor]:
    config = ModelConfig.from_path(str(folder), dtype="float32")
    return dict(load_model(config, load, CPU, torch.float32, tp=tp).named_parameters())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("remote") / "checkpoint"
    make_checkpoint("llama", path, num_key_value_heads=2, shard_size="2MB", **WIDE)
    return path


@pytest.fixture
def url(checkpoint: Path) -> Iterator[str]:
    """The checkpoint in fsspec's memory, under a name of its own."""
    name = f"/{uuid4().hex}"
    files = fsspec.filesystem("memory")
    for file in checkpoint.iterdir():
        files.pipe_file(f"{name}/{file.name}", file.read_bytes())
    yield f"memory:/{name}"
    files.rm(name, recursive=True)


def put(url: str, name: str, content: bytes) -> None:
    fsspec.filesystem("memory").pipe_file(f"{url.removeprefix('memory:/')}/{name}", content)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that were read of each file."""
    read, plain = Counter[str](), RemoteFolder.read

    def counted(self: RemoteFolder, name: str, begin: int, end: int) -> bytes:
        read[name] += end - begin
        return plain(self, name, begin, end)

    monkeypatch.setattr(RemoteFolder, "read", counted)
    return read


@pytest.mark.parametrize("piece", [remote.PIECE, 1000])
def test_ranks_read_their_bytes(
    piece: int, checkpoint: Path, url: str, tmp_path: Path, ranges: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two matrices of three are split by rows: their ranks read half of them, and the whole of the third."""
    monkeypatch.setattr(remote, "PIECE", piece)
    folder = fetch_config(RemoteFolder(url), tmp_path)
    assert len(read_note(folder).files) > 1
    size = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    for tp in (SOLO, ThreadGroup.apart(0, 2), ThreadGroup.apart(1, 2)):
        ranges.clear()
        found, expected = load(folder, tp=tp), load(checkpoint, LoadConfig(), tp)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        # The launch has read the headers, so a rank does not read them again.
        assert ranges.total() <= size - sum(len(file.header) for file in read_note(folder).files.values())
        if tp.size == 2:
            assert 0.66 < ranges.total() / size < 0.69


# Expert matrices, fused and interleaved; biases; rows in turns; tied tables.
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe", "qwen3_next", "phi3"])
def test_families_load_as_from_a_directory(family: str, tmp_path: Path) -> None:
    sizes = {"linear_num_key_heads": 4, "linear_num_value_heads": 8} if family == "qwen3_next" else {}
    make_checkpoint(family, tmp_path / "model", **sizes)
    folder = fetch_config(RemoteFolder(f"file://{tmp_path}/model/"), tmp_path / "cache")
    for tp in (SOLO, ThreadGroup.apart(1, 2)):
        found, expected = load(folder, tp=tp), load(tmp_path / "model", LoadConfig(), tp)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_config_is_fetched_again_at_every_start(url: str, tmp_path: Path) -> None:
    put(url, "chat_template.jinja", b"one")
    folder = fetch_config(RemoteFolder(url), tmp_path)
    assert (folder / "chat_template.jinja").read_bytes() == b"one" and not list(folder.glob("*.safetensors"))
    fsspec.filesystem("memory").rm(f"{url.removeprefix('memory:/')}/chat_template.jinja")
    assert fetch_config(RemoteFolder(url), tmp_path) == folder
    assert not (folder / "chat_template.jinja").exists()


class Cut:
    """A file system whose first `failures` answers are cut."""

    def __init__(self, failures: int, error: Exception | None) -> None:
        self.failures, self.error, self.asked = failures, error, 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.asked += 1
        if self.asked > self.failures:
            return bytes(end - start)
        if self.error is not None:
            raise self.error
        return bytes(end - start - 1)


def cut(failures: int, error: Exception | None, pauses: list[float] | None = None) -> tuple[RemoteFolder, Cut]:
    folder = RemoteFolder("memory://model", still if pauses is None else pauses.append)
    folder._files = files = Cut(failures, error)
    return folder, files


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), RuntimeError("a client's own"), None])
def test_a_cut_connection_is_tried_again(error: Exception | None) -> None:
    folder, files = cut(ATTEMPTS - 1, error)
    assert folder.read("a.safetensors", 5, 9) == bytes(4) and files.asked == ATTEMPTS
    pauses: list[float] = []
    folder, files = cut(ATTEMPTS, error, pauses)
    what = str(error) if error is not None else "3 bytes came"
    with pytest.raises(ConfigError, match=rf"memory://model/a.safetensors, bytes 5 to 9: {what}, {ATTEMPTS} times"):
        folder.read("a.safetensors", 5, 9)
    assert files.asked == ATTEMPTS and pauses == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("error", "words"), [(FileNotFoundError("a"), "bytes 0 to 2: the file is gone"), (PermissionError("no"), "denied")]
)
def test_what_another_try_cannot_mend_is_said_at_once(error: Exception, words: str) -> None:
    folder, files = cut(ATTEMPTS, error)
    with pytest.raises(ConfigError, match=words):
        folder.read("a.safetensors", 0, 2)
    assert files.asked == 1


def header(entries: dict[str, Any], size: int = 0) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "an endless header": (b"\xff" * 8, "it ends within its header"),
    "a long header": ((1 << 20).to_bytes(8, "little"), "ends within its header"),
    "a short file": (b"123", "ends within its header"),
    "no JSON": ((4).to_bytes(8, "little") + b"nope", "damaged or incomplete"),
    "bytes that are not there": (
        header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        "bytes instead of",
    ),
    "a shape of another size": (header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, 4), "tensor a"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers_are_refused(kind: str, url: str, tmp_path: Path) -> None:
    content, words = HOSTILE[kind]
    folder = fetch_config(RemoteFolder(url), tmp_path)
    put(url, sorted(read_note(folder).files)[0], content)
    with pytest.raises(ConfigError, match=words):
        load(fetch_config(RemoteFolder(url), tmp_path))


CHANGES: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "unknown": (lambda tensors: tensors.update(x=torch.ones(1)), "does not know: x"),
    "shape": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
        "tensor model.norm.weight has",
    ),
    "dtype": (
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(96).to(torch.float8_e4m3fn)}),
        "tensor model.norm.weight is of F8_E4M3",
    ),
    "scale": (
        lambda tensors: tensors.update({"model.layers.0.self_attn.k_scale": torch.ones(1)}),
        "k_scale is a scale of an eight-bit cache",
    ),
    "missing": (lambda tensors: tensors.pop("model.norm.weight"), "lacks tensors for .*norm.weight"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_names_and_shapes_are_strict(kind: str, tmp_path: Path) -> None:
    change, words = CHANGES[kind]
    make_checkpoint("llama", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    folder = fetch_config(RemoteFolder(f"file://{tmp_path}/model"), tmp_path / "cache")
    with pytest.raises(ConfigError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "has no weight_map"),
        (b'{"weight_map": {"a": "../a.safetensors"}}', "no safetensors file of that directory"),
        (b'{"weight_map": {"a": "a.bin"}}', "no safetensors file of that directory"),
        (b'{"weight_map": {"a": "a.safetensors"}}', "a.safetensors is missing"),
        (bytes(33 << 20), "at most 33554432 are read"),
    ],
)
def test_an_index_is_checked(content: bytes, words: str, url: str, tmp_path: Path) -> None:
    put(url, "model.safetensors.index.json", content)
    with pytest.raises(ConfigError, match=words):
        fetch_config(RemoteFolder(url), tmp_path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/model", "unknown scheme"),
        ("https://user:word@host/model", "no credentials"),
        ("https://host/model?token=1", "no credentials, query"),
    ],
)
def test_urls_that_are_refused(url: str, words: str) -> None:
    assert is_url(url)
    with pytest.raises(ConfigError, match=words) as refused:
        RemoteFolder(url)
    assert "word@" not in str(refused.value) and "token=1" not in str(refused.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", lacks)
    with pytest.raises(ConfigError, match=r"s3:// needs packages \(Install s3fs .*\); pip install fsspec s3fs"):
        RemoteFolder("s3://bucket/model")


def test_the_launcher_takes_a_url(checkpoint: Path, tmp_path: Path) -> None:
    options = {"device": "cpu", "skip_tokenizer_init": True, "download_dir": str(tmp_path)}
    url = f"file://{checkpoint}"
    for asked in ("auto", "remote"):
        args = ServerArgs.from_kwargs(Hardware(), model_path=url, load_format=asked, **options)
        found, config = find_model(args)
        assert found.model.load_format == "remote" and Path(config.path, REMOTE_NOTE).is_file()
    with pytest.raises(ConfigError, match="--load-format gguf: a URL is read with remote"):
        find_model(ServerArgs.from_kwargs(Hardware(), model_path=url, load_format="gguf", **options))
    with pytest.raises(ConfigError, match="--load-format remote: --model-path must be a URL"):
        find_model(ServerArgs.from_kwargs(Hardware(), model_path=str(checkpoint), load_format="remote", **options))
    assert REMOTE.format.beside.name == "auto"


def test_the_launcher_compares_sizes(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text()) | {"num_hidden_layers": 50}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    options = {"device": "cpu", "skip_tokenizer_init": True, "download_dir": str(tmp_path / "cache")}
    with pytest.raises(ConfigError, match="num_hidden_layers is 50"):
        find_model(ServerArgs.from_kwargs(Hardware(), model_path=f"file://{tmp_path}/model", **options))
