"""Options of a scheduler that may be changed while it runs: a command that is answered by a ControlReqOutput."""

from __future__ import annotations

import msgspec


class SetInternalStateReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """New values of these options; None leaves an option unchanged."""

    id: int
    schedule_conservativeness: float | None = None
    stream_interval: int | None = None
    decode_log_interval: int | None = None
