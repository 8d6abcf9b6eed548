"""The edge of a child process: what it does is run here, and why it cannot go on is told to the parent.

The one place, besides the HTTP edge, that catches every exception.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import msgspec

from mysglang.srt.errors import ConfigError, PeerLost
from mysglang.srt.messages.launch import Failed, FromChild
from mysglang.srt.utils.process import ParentLink
from mysglang.srt.utils.service_thread import on_thread_death

logger = logging.getLogger(__name__)


def tell_parent(link: ParentLink, message: FromChild) -> None:
    link.tell(msgspec.json.encode(message))


def run_child(body: Callable[[ParentLink], None]) -> NoReturn:
    """Run `body` as this whole process. A child has no end of its own: coming back from here is a failure."""
    link = ParentLink.attach()
    on_thread_death(partial(_end_by, link))
    try:
        body(link)
    except ConfigError as error:
        # The user's business: said in the user's words, without a traceback.
        tell_parent(link, Failed(list(error.problems)))
    except PeerLost as error:
        # Not logged: the last line of the log is for the cause.
        tell_parent(link, Failed([summary(error)], follows=True))
    except Exception as error:
        logger.exception("this process cannot go on")
        tell_parent(link, Failed([summary(error)]))
    sys.exit(1)


def _end_by(link: ParentLink, cause: str) -> None:
    """End this process at once, of a thread that it cannot serve without."""
    tell_parent(link, Failed([cause]))
    os._exit(1)


def summary(error: BaseException) -> str:
    """One line that names the error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
