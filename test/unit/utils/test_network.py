"""Ports are taken early, and errors name their holder; sockets are in a folder that no other user can enter."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fixtures.patience import PATIENCE_S
from fixtures.private_folder import is_private
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.network import (
    bind_http_socket,
    http_url,
    ipc_endpoint,
    make_ipc_dir,
)
from mysglang.srt.utils.private_dir import remove_private_dir


def test_port_0_takes_a_free_one_and_listens() -> None:
    with (
        bind_http_socket("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname(), timeout=PATIENCE_S),
    ):
        pass


def test_a_busy_port_is_refused_with_its_holder() -> None:
    with bind_http_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind_http_socket("127.0.0.1", port)
    text = str(caught.value)
    assert f"--port {port}: the port is in use by process {os.getpid()}" in text
    assert "\n" not in text


def test_a_port_is_free_again_at_once() -> None:
    with bind_http_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        listener.setblocking(True)
        server_side, _ = listener.accept()
        # The side that closes first is left in TIME_WAIT.
        server_side.close()
        client.close()
    bind_http_socket("127.0.0.1", port).close()


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1"):
        bind_http_socket("192.0.2.1", 0)


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--host no\.such\.host\.invalid: no such address"):
        bind_http_socket("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("box", "http://box:1"),
    ],
)
def test_url(host: str, url: str) -> None:
    assert http_url(host, 1) == url


def test_ipc_directory_is_private_and_goes_away() -> None:
    directory = make_ipc_dir()
    assert is_private(directory)
    (directory / "socket").touch()
    remove_private_dir(directory)
    assert not directory.exists()
    remove_private_dir(directory)


def test_ipc_directory_avoids_paths_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    directory = make_ipc_dir()
    try:
        assert directory.parent != deep
        path = ipc_endpoint(directory, "n" * 24).removeprefix("ipc://")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
    finally:
        remove_private_dir(directory)


def test_ipc_directory_prefers_the_users_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Path("/tmp") / f"r{os.getpid()}"
    short.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    try:
        directory = make_ipc_dir()
        assert directory.parent == short
        remove_private_dir(directory)
    finally:
        short.rmdir()


def test_a_socket_name_must_fit() -> None:
    with pytest.raises(ValueError, match="longer than"):
        ipc_endpoint(Path("/tmp"), "n" * 25)
