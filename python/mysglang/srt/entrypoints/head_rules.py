"""head_rules: what the head of a request must not say, since two servers could read it in two ways.

A proxy and this server that disagree about the end of a request, or about its host, let a client smuggle one request
inside another (RFC 9112, sections 3.2, 6.1 and 11.2). The parser refuses most of it: folded lines, bare CR and LF,
spaces before a colon, two lengths, a length beside an encoding. These rules are the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from mysglang.srt.entrypoints.error_responses import ErrorFacts

Headers = Sequence[tuple[bytes, bytes]]

VERSIONS = ("1.1", "1.0")

SINGLE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"transfer-encoding",
        b"x-api-key",
    }
)
"""Headers that a request has once at most: a second one would decide for another reader."""


def fault_in_head(version: str, url: bytes, headers: Headers) -> ErrorFacts | None:
    """Returns the fault of a parsed head, or None. `headers`: names in lower case."""
    if version not in VERSIONS:
        return ErrorFacts(505, f"HTTP/{version} is not served; send HTTP/1.1.")
    names = [name for name, _ in headers]
    if len(set(names)) != len(names) and (twice := _twice(names)):
        return ErrorFacts(400, f"The request has more than one header {twice.decode()!r}.")
    if b"host" not in names and version == "1.1":
        return ErrorFacts(400, "The request has no header 'host', which HTTP/1.1 requires.")
    if b"transfer-encoding" in names:
        value = next(value for name, value in headers if name == b"transfer-encoding")
        if value.lower() != b"chunked":
            return ErrorFacts(400, f"The transfer encoding must be chunked, got {value.decode('latin-1')!r}.")
        if version == "1.0":
            return ErrorFacts(400, "HTTP/1.0 has no transfer encoding; send HTTP/1.1.")
    return None if url.startswith(b"/") else _fault_in_target(url, headers)


def _twice(names: Sequence[bytes]) -> bytes | None:
    return next((name for name in SINGLE if names.count(name) > 1), None)


def _fault_in_target(url: bytes, headers: Headers) -> ErrorFacts | None:
    """Returns a fault if the host in the URL differs from the Host header, by which access is decided."""
    scheme, _, rest = url.partition(b"://")
    authority, slash, _ = rest.partition(b"/")
    if scheme.lower() not in (b"http", b"https") or not slash:
        return ErrorFacts(400, "The URL must be a path.")
    if authority.lower() not in [value.lower() for name, value in headers if name == b"host"]:
        return ErrorFacts(400, "The URL names another host than the header 'host'.")
    return None
