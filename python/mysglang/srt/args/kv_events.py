"""Fields of `--kv-events-config`: where and how changes of the prefix cache are published. SGLang's names and
defaults.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mysglang.srt.utils.json_errors import in_words

MAX_PORT = 65535


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events are published."""

    publisher: Literal["null", "zmq"] = "null"
    """`null` publishes nothing."""
    endpoint: str = "tcp://*:5557"
    bind: bool | None = None
    """True to bind the endpoint, False to connect to it. None: bind if the endpoint names no host."""
    replay_endpoint: str | None = None
    """Endpoint at which subscribers ask for the batches that they missed."""
    buffer_steps: int = 10_000
    """Batches that are kept for those."""
    hwm: int = 100_000
    """Batches that may wait for a slow subscriber. Further batches are not sent to it."""
    max_queue_size: int = 100_000
    """Batches that may wait to be sent to all subscribers together."""
    topic: str = ""
    format: Literal["default"] = "default"

    @property
    def binds(self) -> bool:
        """True if this process binds the endpoint."""
        if self.bind is not None:
            return self.bind
        return "*" in self.endpoint or "[::]" in self.endpoint or self.endpoint.startswith(("ipc://", "inproc://"))


def read_kv_events(text: str) -> KvEventsConfig:
    """Returns the config in a JSON object. Raises ValueError."""
    config = msgspec.json.decode(text, type=KvEventsConfig)
    if min(config.buffer_steps, config.hwm, config.max_queue_size) < 1:
        raise ValueError("buffer_steps, hwm and max_queue_size must be at least 1")
    for endpoint in (config.endpoint, config.replay_endpoint):
        if endpoint is not None and not endpoint.startswith(("tcp://", "ipc://", "inproc://")):
            raise ValueError(f"an endpoint begins with tcp:// or ipc://, got {endpoint!r}")
        # ZMQ takes a larger number modulo 65536.
        if endpoint is not None and endpoint.startswith("tcp://") and not _is_port(endpoint.rpartition(":")[2]):
            raise ValueError(f"an endpoint of tcp ends with a port from 1 to {MAX_PORT}, got {endpoint!r}")
    return config


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PORT


def complaint_about(text: str | None) -> str | None:
    """Returns an error message if the option is invalid, or None."""
    try:
        if text is not None:
            read_kv_events(text)
    except msgspec.MsgspecError as error:
        return in_words(error)
    except ValueError as error:
        return str(error)
    return None
