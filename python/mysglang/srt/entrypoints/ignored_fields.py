"""Reports fields that have no effect: one log line for each name and process, and a header of the response.

Names come from clients, so all that is kept and written of them is bounded: their length, their characters, how many
one response lists, and how many one process remembers.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field

from starlette.types import Scope

from mysglang.srt.args.serving import UnknownFields
from mysglang.srt.entrypoints.headers import Headers
from mysglang.srt.messages.generate import REFUSED, FieldReport
from mysglang.srt.utils.said_once import SaidOnce

logger = logging.getLogger(__name__)

HEADER = "x-ignored-fields"
MAX_NAME_LENGTH = 64
"""Characters of a name that are written; a longer name ends in dots."""
MAX_LISTED = 16
"""Names that one response lists; it counts the others."""

_HEADER = HEADER.encode()
_ODD = re.compile(r"[^A-Za-z0-9_.$-]")
_LOG = "mysglang.ignored_fields.log"
_REPORT = "mysglang.ignored_fields.report"


class FieldLog:
    """Logs fields without effect, once for each name in this process, and knows whether unknown fields are refused."""

    def __init__(self, unknown_fields: UnknownFields = "report") -> None:
        self.refuses = unknown_fields == "error"
        self._said = SaidOnce(logger, "fields of requests without effect")

    def report(self, where: str) -> IgnoredFields:
        """Returns a report for one request. `where`: what the request went to, for the log line."""
        return IgnoredFields(self, where)

    def note(self, name: str, where: str, *, known: bool) -> None:
        """Write the line for `name`, if it was not written before. `name` is safe to write."""
        hint = "" if known else " (--unknown-fields error refuses such requests)"
        what = "has no effect here" if known else "is not known and is ignored"
        self._said.warn(name, f"{where}: the field {name} {what}; said once{hint}.")


@dataclass(slots=True)
class IgnoredFields:
    """Fields without effect in one request."""

    log: FieldLog
    where: str
    names: list[str] = field(default_factory=list)
    """Safe to write; at most MAX_LISTED, each once."""
    more: int = 0
    """Mentions of other names."""

    def unknown(self, name: str) -> bool:
        if not self.log.refuses:
            self._note(name, known=False)
        return not self.log.refuses

    def idle(self, name: str) -> None:
        self._note(name, known=True)

    def header(self) -> str:
        """Returns the names as a header's value; empty if there are none."""
        return ", ".join([*self.names, *([f"and {self.more} more"] if self.more else [])])

    def _note(self, name: str, *, known: bool) -> None:
        shown = safe(name)
        if shown in self.names:
            return
        if len(self.names) == MAX_LISTED:
            self.more += 1
        else:
            self.names.append(shown)
        self.log.note(shown, self.where, known=known)


def safe(name: str) -> str:
    """Returns `name` in a form safe for a header and a log line: short, of letters, digits and a few signs."""
    short = name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 3] + "..."
    return _ODD.sub("?", short) or "?"


def fields_of(scope: Scope) -> FieldReport:
    """Returns the report of the request that `scope` belongs to; without a log, unknown names are refused."""
    known: FieldReport | None = scope.get(_REPORT)
    if known is not None:
        return known
    log: FieldLog | None = scope.get(_LOG)
    if log is None:
        return REFUSED
    path: str = getattr(scope.get("route"), "path", "a request")
    report = scope[_REPORT] = log.report(path)
    return report


def log_to(scope: Scope, log: FieldLog) -> None:
    """Makes `log` receive the fields of the request that `scope` belongs to."""
    scope[_LOG] = log


def with_ignored_fields(headers: Headers, scope: Scope) -> Headers:
    """Returns the headers of an answer with the list of its request's fields that had no effect, if there are any."""
    report: IgnoredFields | None = scope.get(_REPORT)
    if report is None or not report.names:
        return headers
    return [*(pair for pair in headers if pair[0] != _HEADER), (_HEADER, report.header().encode())]
