"""ApiClient: requests to one server from a command, over plain HTTP or HTTPS, one after another.

Straight to the address, past any proxy of the environment. Knows no command.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from mysglang.bench.address import Address
from mysglang.bench.refused import Failed, Refused
from mysglang.srt.environ import API_KEY

CONNECT_S = 10.0
"""Seconds to wait for a connection. An answer may take any time."""
MAX_SHOWN = 500
"""Characters of an answer that an error quotes."""


class ServerRefused(Failed):
    """The server answered with an error. `status` stays 1: `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ApiClient:
    """One server. Raises Failed where it cannot be reached, ServerRefused for an error that it answers."""

    def __init__(self, base_url: str, api_key: str | None = None, *, hint: str = "") -> None:
        """`hint` ends the error message when no server answers. Raises Refused for an invalid URL."""
        address = Address.of(base_url, "--base-url")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._address = replace(address, prefix=address.prefix.removesuffix("/v1"))
        self._hint = hint
        key = api_key or API_KEY.get()
        if not key.isascii() or not key.isprintable():
            raise Refused("the API key holds characters that no HTTP header can carry.")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> dict[str, Any]:
        """Returns the JSON object at `path`."""
        return self._whole("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the JSON object that answers `body`."""
        return self._whole("POST", path, body)

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Yields the objects of a stream of server-sent events. Closing the iterator closes the connection, which ends
        the request on the server.
        """
        connection, response = self._send("POST", path, body)
        try:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    return
                event = _object(payload)
                if error := event.get("error"):
                    raise ServerRefused(200, _message(error))
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the connection to {self.base_url} broke: {error}.") from None
        finally:
            connection.close()

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        connection, response = self._send(method, path, body)
        try:
            return _object(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the connection to {self.base_url} broke: {error}.") from None
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connect()
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        try:
            content = None if body is None else _encoded(body)
            connection.request(method, f"{self._address.prefix}{path}", content, headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ServerRefused(response.status, _why(response.status, response.read()))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Failed(f"the connection to {self.base_url} broke: {error or type(error).__name__}.") from None
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _connect(self) -> http.client.HTTPConnection:
        if self._address.tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._address.host, self._address.port, timeout=CONNECT_S, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self._address.host, self._address.port, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            why = error.strerror or str(error)
            raise Failed(f"no server answers at {self.base_url} ({why}).{self._hint}") from None
        connection.sock.settimeout(None)
        return connection


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # bytes of the command line or of stdin became halves of surrogate pairs
        raise Failed("the request holds bytes that are not UTF-8 text.") from None


def _object(payload: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(payload) if payload else {}
    except orjson.JSONDecodeError:
        raise Failed(f"the server answered with what is not JSON: {payload[:MAX_SHOWN]!r}.") from None
    return found if isinstance(found, dict) else {"data": found}


def _why(status: int, body: bytes) -> str:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = body[:MAX_SHOWN].decode(errors="replace")
    message = _message(said.get("error", said) if isinstance(said, dict) else said)
    if status == http.client.UNAUTHORIZED:
        message += " (give the key with --api-key, or in MYSGLANG_API_KEY)"
    return f"the server answered {status}: {message}"


def _message(error: Any) -> str:
    found = error.get("message", error) if isinstance(error, dict) else error
    return str(found)[:MAX_SHOWN]
