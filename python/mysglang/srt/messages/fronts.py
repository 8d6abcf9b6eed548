"""Messages between the fronts of one server, for actions that all fronts must know. Sent to a front like replies."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class FrontBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The front's loop is turning; sent about once a second to all others."""

    front: int


class PeerAbortReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A client asked another front to abort `rid`, or everything; it may be here."""

    rid: str = ""
    abort_all: bool = False
    scope: str | None = None
    """API key whose requests are meant; None for all keys."""


class DrainReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The server is shutting down: accept no more requests."""


class EndReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Every open request ends now, with an error that says why."""

    why: str
    kind: Literal["died", "shutting_down"]


class RequestLogReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Which parts of requests are logged from now on."""

    log_requests: bool
    dump_folder: str


class FreezeFrontGcReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Let the garbage collector forget what is alive now."""


FrontOrder: TypeAlias = DrainReq | EndReq | RequestLogReq | FreezeFrontGcReq
"""A command to the whole front, not only to its TokenizerManager."""
