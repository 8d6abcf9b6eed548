"""FieldReport: reports a request's fields that have no effect here. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class FieldReport(Protocol):
    """Hears of such fields while a request is checked."""

    def unknown(self, name: str) -> bool:
        """A name that this server does not know. True: the field is left out; False: the request is refused."""
        ...

    def idle(self, name: str) -> None:
        """A field that this server knows, with a value that it cannot act on and that does not change the answer."""
        ...


class RefusedFields:
    """Refuses every unknown name, and says nothing of idle fields."""

    def unknown(self, name: str) -> bool:
        return False

    def idle(self, name: str) -> None:
        pass


REFUSED = RefusedFields()


def asks_for_nothing(value: object, neutral: Sequence[object] = ()) -> bool:
    """True if the value is the same as leaving the field out: it is null, false, empty, or one of `neutral`.

    False asks for something where true is neutral.
    """
    if value is False:
        return not any(known is True for known in neutral)
    if value is None or value in ("", [], {}):
        return True
    # 1 == True in Python, but not in JSON.
    return any(type(value) is type(known) and value == known for known in neutral)
