"""The name of a request between the processes: the client's name for it, a serial number, the number of its front."""

from __future__ import annotations


def wire_rid(rid: str, serial: int, front: int) -> str:
    """Returns the name of a request between the processes. `serial` distinguishes two requests to which a client gave
    the same name.
    """
    return f"{rid}@{serial}.{front}"


def rid_of(name: str) -> str:
    """Returns the name by which the client knows the request with this wire name."""
    return name[: name.rindex("@")]


def call_of(name: str) -> str:
    """Returns the part of a request's wire name that all requests of one call share."""
    return name[name.rfind("@") + 1 :]


def front_of(name: str) -> int:
    """Returns the number of the front that sent the request. It is the end of `name`, the request's name between
    processes.
    """
    # Few servers have more than ten.
    return int(name[-1]) if name[-2] == "." else int(name[name.rindex(".") + 1 :])
