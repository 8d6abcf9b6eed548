"""Names of a checkpoint's tensors, where a family has other ones for what all decoders have."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache


@cache
def renaming(pairs: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """The function that replaces, in a name with dots, each run of whole parts that `pairs` begins a pair with by the
    end of the pair. Of two runs that begin at the same place, the longer one is meant; what was replaced stays.

    `renaming((("a.b", "x"),))("a.b.c")` is `x.c`, and `aa.b` stays.
    """
    if not pairs:
        return lambda name: name
    table = dict(pairs)
    runs = "|".join(re.escape(run) for run in sorted(table, key=len, reverse=True))
    pattern = re.compile(rf"(?<![^.])(?:{runs})(?![^.])")
    return lambda name: pattern.sub(lambda found: table[found[0]], name)
