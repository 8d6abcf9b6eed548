"""FrontLaunch: the arguments of a further front process. Imports no web framework."""

from __future__ import annotations

import msgspec

from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.server_args import PortArgs, ServerArgs


class FrontLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a front process needs to start. The process inherits the file descriptors."""

    server_args: ServerArgs
    port_args: PortArgs
    facts: SchedulerFacts
    index: int
    """Number of this front; the main process is 0."""
    listener: int
    """Descriptor of the socket that all fronts accept connections from."""
    to_owner: int
    """Descriptor of the way to the front that keeps what lives between requests."""


FRONT_TITLE = "mysglang::tokenizer_worker_"


def front_title(index: int) -> str:
    return f"{FRONT_TITLE}{index}"
