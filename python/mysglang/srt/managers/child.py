"""Child processes: the arguments of each, how its work is run, and how its end is reported to its parent.

Light: the process that starts children loads this first. Besides the HTTP edge, `run_child` is the only place that
catches every exception.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import msgspec

from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.distributed.ranks import RankContext, rank_contexts
from mysglang.srt.errors import ConfigError, PeerLost
from mysglang.srt.messages.launch import Failed, FromChild
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.process import ParentLink
from mysglang.srt.utils.service_thread import on_thread_death

DETOKENIZER_TITLE = "mysglang::detokenizer"


class SchedulerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of one scheduler process."""

    server_args: ServerArgs
    port_args: PortArgs
    ranks: RankContext


class DetokenizerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of one detokenizer process."""

    server_args: ServerArgs
    port_args: PortArgs
    index: int = 0
    """Which of several."""


def ranks_of(parallel: ParallelArgs, meeting_file: str = "") -> list[RankContext]:
    """Returns the contexts of all computing processes, the first rank's first."""
    return rank_contexts(
        parallel.tp_size,
        parallel.pp_size,
        device=parallel.device,
        gpus=parallel.gpus,
        meeting_file=meeting_file,
    )


def scheduler_launches(args: ServerArgs, ports: PortArgs) -> list[SchedulerLaunch]:
    """Returns the arguments of each rank's scheduler process."""
    contexts = ranks_of(args.parallel, ports.meeting_file)
    return [SchedulerLaunch(server_args=args, port_args=ports, ranks=ranks) for ranks in contexts]


def scheduler_title(ranks: RankContext) -> str:
    return f"mysglang::scheduler_{ranks.title}"


def detokenizer_title(index: int) -> str:
    return DETOKENIZER_TITLE if index == 0 else f"{DETOKENIZER_TITLE}_{index}"


logger = logging.getLogger(__name__)


def report_to_parent(link: ParentLink, message: FromChild) -> None:
    link.report(msgspec.json.encode(message))


def run_child(body: Callable[[ParentLink], None]) -> NoReturn:
    """Run `body` as this whole process. A child has no end of its own: coming back from here is a failure."""
    link = ParentLink.attach()
    on_thread_death(partial(_end_by, link))
    try:
        body(link)
    except ConfigError as error:
        # The user's business: said in the user's words, without a traceback.
        report_to_parent(link, Failed(list(error.problems)))
    except PeerLost as error:
        # Not logged, because the last line of the log is reserved for the cause.
        report_to_parent(link, Failed([summary(error)], follows=True))
    except Exception as error:
        logger.exception("This process failed and ends.")
        report_to_parent(link, Failed([summary(error)]))
    sys.exit(1)


def _end_by(link: ParentLink, cause: str) -> None:
    """Ends this process at once, since a thread that it needs has died."""
    report_to_parent(link, Failed([cause]))
    os._exit(1)


def summary(error: BaseException) -> str:
    """Returns one line with the error's type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
