"""What each child process is told when it is started, and its name. Light: whoever starts children loads this first."""

from __future__ import annotations

import msgspec

from mysglang.srt.server_args import PortArgs, ServerArgs

DETOKENIZER_TITLE = "mysglang::detokenizer"


class SchedulerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What one scheduler process is told."""

    server_args: ServerArgs
    port_args: PortArgs
    tp_rank: int


class DetokenizerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What one detokenizer process is told."""

    server_args: ServerArgs
    port_args: PortArgs
    index: int = 0
    """Which of several."""


def scheduler_title(tp_rank: int) -> str:
    return f"mysglang::scheduler_TP{tp_rank}"


def detokenizer_title(index: int) -> str:
    return DETOKENIZER_TITLE if index == 0 else f"{DETOKENIZER_TITLE}_{index}"
