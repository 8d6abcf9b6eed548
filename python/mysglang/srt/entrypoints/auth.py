"""Access control: API keys for every path that is not named open, and no foreign host on the loopback address.

Two checks of a request's head, before any route sees it (`entrance.py`). Paths are compared exactly and as the router
sees them, so that no other spelling of an open path is open; what no table names needs a key, routes that do not exist
included.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from mysglang.srt.entrypoints.error_responses import ErrorFacts
from mysglang.srt.entrypoints.headers import header
from mysglang.srt.entrypoints.owner import ADMIN, OWNER, OWNER_DIGITS, digest

NEEDS_ADMIN_KEY = ErrorFacts(403, "Forbidden: only with an admin key; start the server with --admin-api-key.")

LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})

CONTAINER_NAMES = frozenset({"host.docker.internal", "gateway.docker.internal", "host.containers.internal"})
"""Names by which containers reach their host. The public DNS has nothing below `.internal`."""

LOCAL_ORIGIN = r"https?://(localhost|([a-z0-9-]+\.)+localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
"""Pages that this machine serves itself."""


@dataclass(frozen=True, slots=True)
class Access:
    """Paths that differ from the rest: open ones need no key, admin ones the admin key, where there is one, and locked
    ones the admin key always.
    """

    open: frozenset[str]
    admin: frozenset[str]
    locked: frozenset[str] = frozenset()


class ApiKeyAuth:
    """Check that a request has the key that its path needs.

    A key comes as `Authorization: Bearer KEY`, or as `x-api-key: KEY` from Anthropic's clients.

    | configured   | open paths | admin paths      | locked paths     | everything else |
    | ------------ | ---------- | ---------------- | ---------------- | --------------- |
    | neither      | -          | -                | closed           | -               |
    | api keys     | -          | api key          | closed           | api key         |
    | admin key    | -          | admin key        | admin key        | -               |
    | both         | -          | admin key        | admin key        | api key         |

    A known key of the wrong rank is answered 403, anything else 401.
    """

    def __init__(self, *, access: Access, api_keys: Sequence[str], admin_key: str | None) -> None:
        self.access = access
        self._api_keys = [digest(key.encode()) for key in api_keys]
        self._admin_keys = [digest(admin_key.encode())] if admin_key else []

    def refusal(self, scope: Scope) -> ErrorFacts | None:
        """Returns why a request may not come in; None if it may. Then its scope names the key that it has."""
        path = route_path(scope)
        if path in self.access.open:
            return None
        needed = self._api_keys
        locked = path in self.access.locked and not self._admin_keys
        if self._admin_keys and (path in self.access.admin or path in self.access.locked):
            needed = self._admin_keys
        if not needed:
            return NEEDS_ADMIN_KEY if locked else None
        # Headers come decoded as latin-1; the key may be any UTF-8.
        given = digest(_key_in(Headers(scope=scope)).encode("latin-1"))
        if _among(given, needed):
            scope[OWNER] = given.hex()[:OWNER_DIGITS]
            if needed is self._admin_keys:
                scope[ADMIN] = True
            return NEEDS_ADMIN_KEY if locked else None
        if _among(given, self._api_keys) or _among(given, self._admin_keys):
            return ErrorFacts(403, "Forbidden: this key may not do that.")
        return ErrorFacts(401, "Unauthorized: send `Authorization: Bearer KEY`, or `x-api-key: KEY`, with a valid key.")


class LoopbackGuard:
    """Check for a server on a loopback address: only requests that name such an address come in, or an origin that was
    invited.

    A page in the user's own browser can reach the loopback address too: under a name of its own that resolves there
    (DNS rebinding, seen in Host) or across sites (seen in Origin).
    """

    def __init__(self, *, invited: Collection[str] = ()) -> None:
        self._invited = frozenset(invited)

    def refusal(self, scope: Scope) -> ErrorFacts | None:
        """Returns why a request may not come in; None if it may."""
        foreign = _foreign_name(scope, self._invited)
        if not foreign:
            return None
        message = f"Forbidden: {foreign!r} does not name this machine; start with an API key to serve other names."
        return ErrorFacts(403, message)


def is_loopback(name: str) -> bool:
    """True if a host name or address, without its port, is this machine's own."""
    name = name.strip("[]").rstrip(".").lower()
    if name in LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _foreign_name(scope: Scope, invited: frozenset[str]) -> str:
    """Returns the name in Host or Origin that is not this machine's, or "" where there is none."""
    host = header(scope, b"host")
    # A page under such a name would be refused by its Origin.
    if host.partition(":")[0].lower() not in CONTAINER_NAMES and _is_foreign(f"//{host}"):
        return host or "(nothing)"
    for name, value in scope["headers"]:
        if name == b"origin":
            origin: str = value.decode("latin-1")
            invites = origin in invited or "*" in invited
            return "" if invites or not _is_foreign(origin) else origin.removeprefix("//") or "(nothing)"
    return ""


@lru_cache(1024)
def _is_foreign(name: str) -> bool:
    try:
        parts = urlsplit(name)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    return not is_loopback(host or "")


def route_path(scope: Scope) -> str:
    """Returns the path as the router matches it: below the path that a proxy shows this server under."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root:
        return path
    root = root.rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _key_in(headers: Headers) -> str:
    """Returns the API key in the request's headers, or "" if there is none. No server has "" as its key."""
    if "authorization" not in headers:
        return headers.get("x-api-key", "").strip()
    scheme, _, key = headers["authorization"].partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _among(given: bytes, known: Sequence[bytes]) -> bool:
    # All are compared, so that the time does not tell which one it was.
    return sum(hmac.compare_digest(given, one) for one in known) > 0
