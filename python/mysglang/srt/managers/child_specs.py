"""What each child process is told when it is started, and its name. Light: whoever starts children loads this first."""

from __future__ import annotations

import msgspec

from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.distributed.ranks import RankContext, rank_contexts
from mysglang.srt.server_args import PortArgs, ServerArgs

DETOKENIZER_TITLE = "mysglang::detokenizer"


class SchedulerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What one scheduler process is told."""

    server_args: ServerArgs
    port_args: PortArgs
    ranks: RankContext


class DetokenizerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What one detokenizer process is told."""

    server_args: ServerArgs
    port_args: PortArgs
    index: int = 0
    """Which of several."""


def ranks_of(parallel: ParallelArgs, meeting_file: str = "") -> list[RankContext]:
    """Of each process that computes, the first rank's first."""
    return rank_contexts(
        parallel.tp_size,
        parallel.pp_size,
        device=parallel.device,
        first_gpu=parallel.base_gpu_id,
        meeting_file=meeting_file,
    )


def scheduler_launches(args: ServerArgs, ports: PortArgs) -> list[SchedulerLaunch]:
    """One for each rank."""
    contexts = ranks_of(args.parallel, ports.meeting_file)
    return [SchedulerLaunch(server_args=args, port_args=ports, ranks=ranks) for ranks in contexts]


def scheduler_title(ranks: RankContext) -> str:
    return f"mysglang::scheduler_{ranks.title}"


def detokenizer_title(index: int) -> str:
    return DETOKENIZER_TITLE if index == 0 else f"{DETOKENIZER_TITLE}_{index}"
