"""SharedRoom: counts how much of a limited room each API key holds. It keeps no data itself.

    one key     |------------------ all of it ------------------|
    four keys   |----- first come ------|  k1 |  k2 |  k3 |  k4 |

Where several keys share a room, half of it is first come, first served, and the other half is set aside in equal parts,
one for each key. So a key that floods the room leaves every other key its part. What can be evicted needs no such part:
there a key may fill the room, and `largest` names the key that gives way when another one comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class SharedRoom:
    """A limit that keys share fairly. Amounts are in one unit: bytes, or things."""

    def __init__(self, total: int, num_keys: int = 1) -> None:
        """`num_keys`: the number of API keys that the server knows. With one or none, nothing is set aside."""
        self.total = total
        self._num_keys = max(num_keys, 1)
        self._part = 0 if num_keys <= 1 else min(max(total // (2 * num_keys), 1), total // num_keys)
        """Amount that is set aside for each key."""
        self._held = Counter[str]()
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def held(self) -> Mapping[str, int]:
        """Amount that each key holds; keys that hold nothing are absent."""
        return self._held

    def has_room(self, key: str, amount: int) -> bool:
        """True if `key` may take that much more: it is free beside what other keys hold and what is set aside. A key's
        own part is always free, even if others had to `take` more than there was room for.
        """
        if 0 < self._held[key] + amount <= self._part:
            return True
        missing = sum(max(self._part - held, 0) for other, held in self._held.items() if other != key)
        absent = self._num_keys - len(self._held.keys() | {key})
        return self._used + amount + missing + max(absent, 0) * self._part <= self.total

    def take(self, key: str, amount: int) -> None:
        """Counts the amount, whether there is room or not."""
        if amount:
            self._held[key] += amount
            self._used += amount

    def give(self, key: str, amount: int) -> None:
        """Gives back this amount."""
        if amount:
            self._held[key] -= amount
            self._used -= amount
            if not self._held[key]:
                del self._held[key]

    @property
    def overfull(self) -> bool:
        return self._used > self.total

    def largest(self) -> str:
        """Returns the key that holds most, which is the first to give something back."""
        return max(self._held, key=self._held.__getitem__)
