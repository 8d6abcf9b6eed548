"""Finding a model, and the error message if it is not found."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from fixtures.patience import PATIENCE_S
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import read_json, read_json_if_there, resolve_model_path

ONLINE = {
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "0",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}
"""Environment in which Hugging Face's client asks a server of this machine."""


def test_a_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    assert resolve_model_path(str(tmp_path / "model")) == tmp_path / "model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model_path("~/model") == tmp_path / "model"
    monkeypatch.chdir(tmp_path)
    assert resolve_model_path("model") == tmp_path / "model"


@pytest.mark.parametrize(
    "model",
    [
        "/no/such/model",
        "./model",
        "../model",
        "~/model",
        "~nobody/x",
        "a/b/c",
        "",
        "org/na me",
        "m" * 5000 + "/",
        "\0",
        "\ud800",
    ],
)
def test_what_can_be_no_repository_is_not_asked_for(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("was asked for"))
    with pytest.raises(ConfigError, match="does not exist; give a directory"):
        resolve_model_path(model)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="is a file"):
        resolve_model_path(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
def test_a_repository_is_downloaded(load_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(model: str, **options: Any) -> str:
        asked.update(options, model=model)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = resolve_model_path("org/name-1.5", revision="v2", download_dir="/cache", load_format=load_format)
    assert found == tmp_path
    assert (asked["model"], asked["revision"], asked["cache_dir"]) == ("org/name-1.5", "v2", "/cache")
    assert "*.json" in asked["allow_patterns"] and ("*.safetensors" in asked["allow_patterns"]) == (
        load_format == "safetensors"
    )
    assert "*.bin" not in asked["allow_patterns"] and "*.py" not in asked["allow_patterns"]


def test_a_home_that_is_none_is_a_directory_of_this_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda _, **options: asked.update(options) or tmp_path)
    resolve_model_path("org/name", download_dir="~nobody-of-this-name/models", load_format="dummy")
    assert asked["cache_dir"] == str(tmp_path / "~nobody-of-this-name/models")


@pytest.mark.parametrize("safe", [True, False])
def test_bin_files_are_downloaded_only_if_there_are_no_others(
    safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("model.safetensors" if safe else "pytorch_model.bin")).touch()
    asked: list[list[str]] = []

    def download(model: str, *, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve_model_path("org/name")
    assert ["*.bin" in patterns for patterns in asked] == ([False] if safe else [False, True])


def test_a_gguf_file_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no file '/no/such\.gguf'; give the path of a GGUF file, or OWNER/N"
    ):
        resolve_model_path("/no/such.gguf")

    def download(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("x")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ConfigError, match=r"no file gg/x\.gguf on this machine, nor such a repository .*; give the path"
    ):
        resolve_model_path("gg/x.gguf")


def test_a_gguf_file_of_a_repository_is_downloaded_with_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(model: str, *, allow_patterns: list[str], **_: Any) -> str:
        asked.append((model, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ConfigError, match=r"repository org/name has no file a-Q4_K_M\.gguf; give the path of a GGUF"):
        resolve_model_path("org/name/a-Q4_K_M.gguf")
    asked.clear()
    for name in ("a-Q4_K_M.gguf", "b-00001-of-00003.gguf"):
        (tmp_path / name).touch()
    assert resolve_model_path("org/name/a-Q4_K_M.gguf") == tmp_path / "a-Q4_K_M.gguf"
    assert resolve_model_path("org/name/b-00001-of-00003.gguf") == tmp_path / "b-00001-of-00003.gguf"
    assert asked == [("org/name", ["a-Q4_K_M.gguf"]), ("org/name", ["b-*-of-00003.gguf"])]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalEntryNotFoundError("x"), "cannot be reached"),
        (errors.HFValidationError("x"), "no such public repository"),
        (OSError("disk full\nmore"), r"\(disk full\); try again"),
    ],
)
def test_a_failed_download_says_why(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_model_path("org/name")
    assert "org/name" in str(caught.value) and "\n" not in str(caught.value)


def test_offline_and_not_cached(tmp_path: Path) -> None:
    """The real client, which the test run keeps offline."""
    with pytest.raises(ConfigError, match="not in the local cache"):
        resolve_model_path("org/name", download_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "must hold a JSON object, not list"),
        (b"\xff\xfe{}", "cannot be read"),
        (b'{"a":' * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_json_that_is_none(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        read_json(tmp_path / "x.json")
    assert "x.json" in str(caught.value)


def test_json_that_may_be_missing(tmp_path: Path) -> None:
    assert read_json_if_there(tmp_path / "x.json") == {}
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert read_json_if_there(tmp_path / "x.json") == {"a": 1}


class Hub(BaseHTTPRequestHandler):
    """One repository, as huggingface.co serves it."""

    COMMIT = "c" * 40
    FILES: Mapping[str, bytes] = {"config.json": b"{}", "model.safetensors": bytes(1 << 20), "notes.md": b"no"}

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        listing = {"id": "org/name", "sha": self.COMMIT, "siblings": [{"rfilename": name} for name in self.FILES]}
        tree = [{"type": "file", "path": name, "size": len(each), "oid": name} for name, each in self.FILES.items()]
        asked = tree if "/tree/" in self.path else listing
        content = self.FILES.get(name, json.dumps(asked).encode())
        self.send_response(200)
        for header, value in (("ETag", f'"{name}"'), ("X-Repo-Commit", self.COMMIT), ("Content-Length", len(content))):
            self.send_header(header, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


def test_a_download_shows_its_progress(tmp_path: Path) -> None:
    """The real client, which gets the files of one format, and draws a bar up to the end."""
    program = "import sys; from mysglang.srt.utils.hf import resolve_model_path as r; print(r(sys.argv[1]))"
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        serving = threading.Thread(target=hub.serve_forever)
        serving.start()
        try:
            ran = subprocess.run(
                [sys.executable, "-c", program, "org/name"],
                env={
                    **os.environ,
                    **ONLINE,
                    "HF_HOME": str(tmp_path),
                    "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
                },
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
        finally:
            hub.shutdown()
            serving.join()
    assert ran.returncode == 0, ran.stderr
    folder = Path(ran.stdout.strip())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: content for name, content in Hub.FILES.items() if name != "notes.md"
    }
    assert re.search(r"100%.*2/2", ran.stderr), ran.stderr
