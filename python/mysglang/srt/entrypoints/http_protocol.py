"""One connection of the HTTP front door: uvicorn's protocol, less pipelining.

uvicorn stops reading a connection on which a second request waits for the answer to the first, and tells only the
last one that the client has left: the first would then generate for nobody, to its end. So what comes before an answer
is complete is not taken, and the connection is closed behind that answer; HTTP has clients send such a request again.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OneAtATime(HttpToolsProtocol):
    """Keeps reading while it answers, so that it hears at once when the client leaves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._too_early = False
        """A request came while the one before it was being answered: it and all that follows are dropped."""

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._too_early = True
            self.cycle.keep_alive = False
        if not self._too_early:
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._too_early:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._too_early:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._too_early:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._too_early:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._too_early:
            super().on_message_complete()
