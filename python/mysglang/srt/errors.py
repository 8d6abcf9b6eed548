"""The exceptions of the runtime, drawn once.

    MysglangError
    ├── ConfigError            the launch cannot go on; carries every problem found, not only the first
    ├── ServerEnded            nothing is served any more; the business of every open request
    │   ├── WorkerDied         a process of ours is gone
    │   └── ShuttingDown       the server was asked to end, and time is up
    ├── PeerLost               another rank of the server is gone; a consequence of what happened there
    └── RequestError           the business of one request; becomes one HTTP status (entrypoints/error_responses.py)
        ├── InvalidRequest     the request is wrong: names the field and the limit
        │   ├── ContextTooLong prompt, or prompt plus max_tokens, does not fit the context
        │   └── PeerRefused    another rank of the server refused it, and says why
        ├── NotFound           the model or route's object does not exist
        ├── Conflict           something that is under way, or was done, is against it
        ├── Overloaded         refused now, worth a retry later
        ├── NoRoom             there is no room on a disk for what it brings
        └── Aborted            ended before its end: by the client, by the scheduler, or with the engine
            └── MemoryReleased the engine has given its memory back for a while

Asserts are for our own bugs only; what a user or the world can cause is one of these.
"""

from __future__ import annotations

import re
from typing import Self


class MysglangError(Exception):
    """Base of everything that mysglang raises on purpose."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Line breaks, and what could steer a terminal."""

MAX_PROBLEM = 1000
"""Characters of one problem. A problem may quote a model's file, which may hold a text of any length."""


class ConfigError(MysglangError):
    """The launch cannot continue. `problems` holds one line for each reason, each saying what to do."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(map(_one_line, problems))
        super().__init__("\n".join(self.problems))


class ServerEnded(MysglangError):
    """The server has ended and serves no request any more. The message says why."""

    def again(self) -> Self:
        """Returns a new instance for one more reader: an exception that several tasks raise gathers the tracebacks of
        all of them.
        """
        return type(self)(*self.args)


class WorkerDied(ServerEnded):
    """A child process ended, or reported that it cannot go on."""


class ShuttingDown(ServerEnded):
    """The server was asked to end, and the time that open requests had for it is over."""


class PeerLost(MysglangError):
    """Another rank of this server has ended, so this one cannot continue. The log of the other process says why it
    ended.
    """


class RequestError(MysglangError):
    """One request cannot be served. `param` names the offending field, where one is to blame."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def reworded(self, message: str, param: str | None) -> Self:
        """Returns the same error in the words of the code that reports it."""
        return type(self)(message, param=param)


class InvalidRequest(RequestError):
    """The request itself is wrong and would be wrong again."""


class ContextTooLong(InvalidRequest):
    """The prompt, or the prompt and its max_tokens together, exceed the context length."""


class PeerRefused(InvalidRequest):
    """Another rank of this server refused the request, so this rank did not carry it out. That rank says why."""


class NotFound(RequestError):
    """The named thing does not exist on this server."""


class Conflict(RequestError):
    """The request would be right at another time: an operation that is under way, or was done, conflicts with it."""


class Overloaded(RequestError):
    """The server refuses now what it may accept later."""


class NoRoom(RequestError):
    """A disk of the server has no room for the request's data; the operator must make room."""


class Aborted(RequestError):
    """The request ended early. `status` is an HTTP status, or None if the client itself asked for it."""

    def __init__(
        self, message: str, *, status: int | None = None, kind: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.kind = kind

    def reworded(self, message: str, param: str | None) -> Self:
        return type(self)(message, status=self.status, kind=self.kind, param=param)


class MemoryReleased(Aborted):
    """The engine has given its memory back, and computes nothing until that is resumed."""


def _one_line(problem: str) -> str:
    line = _CONTROL.sub(" ", problem)
    return line if len(line) <= MAX_PROBLEM else f"{line[: MAX_PROBLEM // 2]} ... {line[-MAX_PROBLEM // 2 :]}"
