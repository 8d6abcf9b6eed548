"""Defaults of programs: the backend and the parameters that a caller does not set."""

from __future__ import annotations

from dataclasses import dataclass

from mysglang.lang.backends.base import Backend


@dataclass
class Settings:
    """Settings of this process; the one object is `settings`."""

    default_backend: Backend | None = None
    enable_precache_with_tracing: bool = True
    """True: `run_batch` traces the program first, and caches the prefix that all runs share."""


settings = Settings()


def set_default_backend(backend: Backend) -> None:
    """Run programs on `backend` from now on, where no other is named."""
    settings.default_backend = backend


def backend_or_default(backend: Backend | None) -> Backend:
    """Returns the given backend, or else the default one. Raises ValueError if there is neither."""
    found = backend if backend is not None else settings.default_backend
    if found is None:
        raise ValueError("no backend: call set_default_backend(RuntimeEndpoint(URL)), or pass backend=.")
    return found


def flush_cache(backend: Backend | None = None, empty_cache: bool = True) -> object:
    """Empties the prefix cache of a backend. Returns False if there is no backend."""
    found = backend if backend is not None else settings.default_backend
    return False if found is None else found.flush_cache(empty_cache)


def get_server_info(backend: Backend | None = None) -> dict[str, object] | None:
    """Returns the options and the state of a backend's server. None if there is no backend."""
    found = backend if backend is not None else settings.default_backend
    return None if found is None else found.get_server_info()
