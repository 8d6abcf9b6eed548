"""TokenShares: which tokens of an answer made which piece of its text, for log-probabilities told beside the text.

An answer is told in pieces that leave out its markers, and may come a little later than their tokens. Each token goes
to the piece in which its first shown byte is; what no piece shows, markers and the end, goes to none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

TokenEntry: TypeAlias = dict[str, Any]
"""A token in the form of chat: its text, its bytes, its log-probability and the most likely alternatives."""


class TokenShares:
    """Add tokens as they come, take what each piece of text is made of."""

    def __init__(self) -> None:
        self._data = bytearray()
        """The bytes of the tokens that no piece has used up."""
        self._tokens: deque[tuple[int, int, TokenEntry]] = deque()
        """(begin, end, token), counted from the first byte of the answer."""
        self._start = 0
        """Index at which `_data` begins, counted from the first byte of the answer."""

    def add(self, entries: Iterable[TokenEntry]) -> None:
        for entry in entries:
            begin = self._start + len(self._data)
            self._data += bytes(entry["bytes"])
            self._tokens.append((begin, self._start + len(self._data), entry))

    def take(self, text: str) -> list[TokenEntry]:
        """The tokens of the next piece. If their bytes are not those of the text (they were no characters), all."""
        wanted = text.encode()
        # The last occurrence: text before it that was not sent is a marker.
        at = self._data.rfind(wanted)
        if at < 0:
            at, wanted = 0, bytes(self._data)
        begin, end = self._start + at, self._start + at + len(wanted)
        found = []
        while self._tokens and self._tokens[0][0] < end:
            _, token_end, entry = self._tokens.popleft()
            if token_end > begin:
                found.append(entry)
        del self._data[: at + len(wanted)]
        self._start = end
        return found
