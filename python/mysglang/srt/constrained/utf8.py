"""Well-formed UTF-8 across tokens, for a library that takes any continuation byte behind any first byte.

Behind four first bytes not every continuation makes a character: the others would be overlong, surrogates, or beyond
U+10FFFF. Tokens that end with such a byte restrict the next token. Source: The Unicode Standard, table 3-7.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mysglang.srt.forward.worker_batch import Ints

NEXT_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
"""First byte of a character -> the second bytes that may follow, first and last."""

_NEVER = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])
_ILL_FORMED = re.compile(rb"\xe0[\x80-\x9f]|\xed[\xa0-\xbf]|\xf0[\x80-\x8f]|\xf4[\x90-\xbf]")


def may_be_utf8(piece: bytes) -> bool:
    """True if `piece` can be part of UTF-8."""
    return piece.translate(None, _NEVER) == piece and not _ILL_FORMED.search(piece)


class Continuations:
    """Tokens that may follow tokens whose last byte is one of NEXT_BYTE."""

    def __init__(self, pieces: Sequence[bytes], words: int) -> None:
        """`pieces`: the bytes of each token. `words`: the number of 32-bit words in a mask."""
        order = {lead: number for number, lead in enumerate(NEXT_BYTE, 1)}
        self._kind = bytes(order.get(piece[-1], 0) if piece else 0 for piece in pieces)
        first = np.array([piece[0] if piece else 0 for piece in pieces], dtype=np.int32)
        self._masks: list[Ints | None] = [None]
        for low, high in NEXT_BYTE.values():
            fitting = np.zeros(32 * words, dtype=np.bool_)
            fitting[: len(pieces)] = (first >= low) & (first <= high)
            self._masks.append(np.packbits(fitting, bitorder="little").view(np.int32))

    def kind(self, token: int) -> int:
        """Returns the kind of end that `token` has; 0 if it restricts nothing."""
        return self._kind[token] if token < len(self._kind) else 0

    def allows(self, kind: int, token: int) -> bool:
        """True if `token` may follow a token of that kind."""
        mask = self._masks[kind]
        return mask is None or bool(mask.view(np.uint32)[token >> 5] >> np.uint32(token & 31) & 1)

    def narrow(self, kind: int, bits: Ints) -> None:
        """Removes from a mask the tokens that may not follow a token of that kind."""
        mask = self._masks[kind]
        if mask is not None:
            bits &= mask
