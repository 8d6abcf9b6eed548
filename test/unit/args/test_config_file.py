"""--config: options of a YAML file, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mysglang.srt.args.cli import parse
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs


def config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return str(path)


def test_names_types_and_lists(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        "model-path: here\nport: 8000\ntp: 1  # an alias\nmem_fraction_static: 0.5\nenable-metrics: true\n"
        "disable-radix-cache: false\ncuda-graph-bs: [1, 2]\ncors-allow-origins: https://a\n",
    )
    assert parse(["--config", path]) == {
        "model_path": "here",
        "port": 8000,
        "tp_size": 1,
        "mem_fraction_static": 0.5,
        "enable_metrics": True,
        "disable_radix_cache": False,
        "cuda_graph_bs": (1, 2),
        "cors_allow_origins": ("https://a",),
    }


def test_the_command_line_wins(tmp_path: Path) -> None:
    path = config(tmp_path, "port: 8000\nhost: 127.0.0.1\n")
    assert parse(["--port", "1", "--config", path]) == {"port": 1, "host": "127.0.0.1"}


def test_the_server_takes_it(tmp_path: Path) -> None:
    args = ServerArgs.from_cli(["--config", config(tmp_path, "port: 8123\n"), "--host", "::1"])
    assert (args.serving.port, args.serving.host) == (8123, "::1")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("api-key: 00123\n", {"api_key": "00123"}),
        ("served-model-name: 1.10\n", {"served_model_name": "1.10"}),
        ("served-model-name: on\n", {"served_model_name": "on"}),
        ("revision: 2024-01-01\n", {"revision": "2024-01-01"}),
        ("served-model-aliases: [a, 7]\n", {"served_model_aliases": ("a", "7")}),
        ("req-waiting-timeout: 1e3\n", {"req_waiting_timeout": 1000.0}),
        ("port: 31:10\n", {"port": "31:10"}),
        ("crash-dump-folder: ~/dumps\n", {"crash_dump_folder": "/home/me/dumps"}),
        ("crash-dump-folder: '~/dumps'\n", {"crash_dump_folder": "~/dumps"}),
        ("port: '8000'\n", {"port": "8000"}),
        ("quantization: null\n", {"quantization": None}),
        ("cuda-graph-bs: [[1]]\n", {"cuda_graph_bs": ([1],)}),
    ],
)
def test_words_without_quotes_mean_what_they_mean_on_a_command_line(
    text: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(["--config", config(tmp_path, text)]) == options


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_gives_nothing(text: str, tmp_path: Path) -> None:
    assert parse(["--config", config(tmp_path, text)]) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 1\nprot: 8000\n", "line 2: --prot is not an option; did you mean --port"),
        ("port: 1\nhost: a\nport: 2\n", "line 3: --port occurs twice"),
        ("tp: 1\ntp-size: 1\n", "line 2: --tp-size occurs twice"),
        ("dp-size: 2\n", "line 1: --dp-size is an option of SGLang that this version"),
        ("config: other.yaml\n", "line 1: --config is an option of SGLang that this version"),
        ("enable-metrics: 'yes'\n", "line 1: --enable-metrics is a flag; give true or false"),
        ("port: {a: 1}\n", "line 1: --port takes one value, not a mapping"),
        ("[1, 2]\n", "it must be a mapping of option names to values"),
        ("port: [1\n", "it is not YAML"),
        ("port: !!python/object:os.system {}\n", "line 1: --port takes one value, not a mapping"),
        ("port: !!python/name:os.system\n", "line 1: --port: could not determine a constructor"),
    ],
)
def test_refuses(text: str, said: str, tmp_path: Path) -> None:
    path = config(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        parse(["--config", path])
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"--config {path}") and said in caught.value.problems[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [("port: http\n", "--port must be an integer, got 'http'."), ("host:\n", "--host needs a value.")],
)
def test_values_are_judged_with_those_of_the_command_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ServerArgs.from_cli(["--config", config(tmp_path, text), "--schedule-policy", "none"])
    assert len(caught.value.problems) == 2


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        parse(["--config", str(tmp_path)])
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        parse(["--config", "~nobody-of-this-name/server.yaml"])
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        parse(["--config", str(tmp_path / "bytes")])
