"""Names of a checkpoint's tensors, where a family has other ones for what all decoders have."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache


@cache
def renaming(pairs: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """A function that renames a name with dots. `pairs` are (run of whole parts, replacement). If two runs begin at the
    same place, the longer one is replaced. A replacement is not replaced again.

    `renaming((("a.b", "x"),))("a.b.c")` is `x.c`, and `aa.b` stays. A run with `^` before it counts only where the name
    begins; ends of pairs may have that, too, for the way back.
    """
    if not pairs:
        return lambda name: name
    table = {run.removeprefix("^"): there.removeprefix("^") for run, there in pairs}
    longest = sorted((run for run, _ in pairs), key=len, reverse=True)
    runs = "|".join("^" * run.startswith("^") + re.escape(run.removeprefix("^")) for run in longest)
    pattern = re.compile(rf"(?<![^.])(?:{runs})(?![^.])")
    return lambda name: pattern.sub(lambda found: table[found[0]], name)
