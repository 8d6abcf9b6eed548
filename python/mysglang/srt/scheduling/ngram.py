"""NgramIndex: what may come next in a text, judged by what came next the last time that its end stood in it.

    … the cat sat on the mat . the cat sat      ends with "the cat sat", which was followed by "on the mat . …"

Prompt lookup (Saxena 2023, vLLM's `ngram`): the text is a request's own prompt and answer. Of others' texts nothing is
looked up, so that nobody can tell by the speed of an answer what somebody else asked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

MATCH = 3
"""Tokens at the end of the text that must have stood in it before."""
_BITS = 21
"""Of a token id in a key. The largest known vocabularies have fewer than 2^19 tokens."""
_FEW = 16
"""New tokens up to which a loop is quicker than arrays are."""


class NgramIndex:
    """Of one text that only grows."""

    __slots__ = ("_ends", "_fed")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        """The last MATCH tokens -> where they ended the last time."""
        self._fed = MATCH - 1
        """Tokens before which all ends are known."""

    def propose(self, tokens: Ints, count: int) -> Ints | None:
        """What may follow: [count]; None where the end of the text never stood in it before.

        tokens: [N] the whole text. Where it was followed by fewer tokens than wanted, the text repeats itself.
        """
        known = len(tokens)
        self._feed(tokens)
        if known < MATCH:
            return None
        key = int(_keys(tokens[known - MATCH :])[0])
        at = self._ends.get(key)
        self._ends[key] = known
        self._fed = known
        if at is None:
            return None
        found: Ints = tokens[at + np.arange(count) % (known - at)]
        return found

    def _feed(self, tokens: Ints) -> None:
        """Know the ends before the last one."""
        first, known = self._fed + 1, len(tokens)
        if known - first > _FEW:
            keys = _keys(tokens[first - MATCH : known - 1]).tolist()
            self._ends.update(zip(keys, range(first, known), strict=True))
        else:
            for end in range(first, known):
                self._ends[int(_keys(tokens[end - MATCH : end])[0])] = end
        self._fed = max(self._fed, known - 1)


def _keys(tokens: Ints) -> npt.NDArray[np.int64]:
    """[N - MATCH + 1] one number for each MATCH tokens in a row."""
    wide = tokens.astype(np.int64)
    last = len(wide) - MATCH + 1
    keys = wide[:last]
    for place in range(1, MATCH):
        keys = keys << _BITS | wide[place : place + last]
    return keys
