"""Addresses: the HTTP port, taken before anything heavy starts, and the private directory of the ipc sockets."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path

import psutil

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.private_dir import LONGEST_NAME, make_private_dir, remove_leftovers

BACKLOG = 2048

UNSENT_BYTES = 128 << 10
"""How much the system may hold for a client beyond what is on its way; left alone, it is megabytes."""

# sun_path holds 108 bytes on Linux and 104 on macOS, its closing zero included.
_MAX_SOCKET_PATH = 103
_LONGEST_SOCKET_NAME = 24


def bind_http_socket(host: str, port: int) -> socket.socket:
    """Listens on `host`:`port` (0: a free one). Raises ConfigError if it is taken, and names the process that holds
    it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: no such address ({error.strerror}).") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Lets a restart reuse a port whose old connections are still closing; no second process can listen on it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. So what a client does not read waits with us, where it is bounded and noticed.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_why_not_bound(host, port, error)) from None
    listener.setblocking(False)
    return listener


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """Returns a URL by which this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def make_ipc_dir() -> Path:
    """Returns a new directory that only this user can enter, short enough for socket paths. The caller removes it with
    `remove_private_dir`. Directories that dead servers left are removed first. Raises ConfigError.
    """
    parents = _ipc_parents()
    for parent in parents:
        remove_leftovers(parent)
    for parent in parents:
        if len(os.fsencode(parent)) + 1 + LONGEST_NAME + 1 + _LONGEST_SOCKET_NAME > _MAX_SOCKET_PATH:
            continue
        try:
            return make_private_dir("ipc", parent)
        except OSError:
            continue
    raise ConfigError("no directory for sockets: set XDG_RUNTIME_DIR or TMPDIR to a short path that can be written.")


def ipc_endpoint(directory: Path, name: str) -> str:
    """Returns the ZMQ endpoint of the socket `name` in `directory`."""
    if len(name) > _LONGEST_SOCKET_NAME:
        raise ValueError(f"socket name {name} is longer than {_LONGEST_SOCKET_NAME}")
    return f"ipc://{directory / name}"


def _ipc_parents() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [Path(runtime)] if runtime else []
    candidates += [Path(tempfile.gettempdir()), Path("/tmp")]
    return [path for path in candidates if path.is_dir() and os.access(path, os.W_OK | os.X_OK)]


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(port)
        by = f" by {holder}" if holder else ""
        return f"--port {port}: the port is in use{by}; stop that, or choose another port."
    if error.errno == errno.EACCES:
        return f"--port {port}: this user may not listen there; choose a port of 1024 or above."
    return f"--host {host} --port {port}: cannot listen there: {error.strerror}."


def _holder(port: int) -> str | None:
    """Returns the process that listens on `port`, as far as this user may know it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a process of another user"
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return None
