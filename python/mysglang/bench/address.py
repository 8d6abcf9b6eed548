"""Address: where a server is, as a URL says it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mysglang.bench.refused import Refused


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server. `prefix` begins every path, and does not end with a slash."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str, option: str = "") -> Address:
        """Parses a URL, which `option` gave. Raises Refused for what no client could connect to or send."""
        what = f"{option} {url!r}".lstrip()
        bad = Refused(f"{what} is not an address such as http://127.0.0.1:30000.")
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            host.encode("idna")
        except ValueError:  # brackets without an address in them, or a name that DNS cannot have
            raise bad from None
        if parts.scheme not in ("http", "https") or not host:
            raise bad
        if " " in url or not url.isprintable() or not parts.path.isascii():
            raise Refused(f"{what} holds characters that no address may have.")
        try:
            port = parts.port
        except ValueError:
            raise Refused(f"{what}: the port is not a number below 65536.") from None
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
