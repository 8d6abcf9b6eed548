"""Tensors of a checkpoint: their names, where a family has other ones for what all decoders have, and their sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple


@cache
def renaming(pairs: tuple[tuple[str, str], ...]) -> Callable[[str], str]:
    """Returns a function that renames a name with dots. `pairs` are (run of whole parts, replacement). If two runs
    begin at the same place, the longer one is replaced. A replacement is not replaced again.

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


WITHIN = "transformer."
"""Beginning of a decoder's names in some families, unless the decoder was saved alone."""


def saved_alone(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Returns the renamings for a checkpoint without `WITHIN`, from those for a checkpoint with it."""
    return tuple((f"^{there.removeprefix(WITHIN)}", here) for there, here in pairs if there.startswith(WITHIN))


class Size(NamedTuple):
    """The size of one dimension of a matrix, and the key of config.json that it comes from."""

    field: str
    """Key of config.json for the size."""
    value: int


class Matrix(NamedTuple):
    """Tensors [rows, columns] of a checkpoint."""

    name: str
    """Within the layer; `{}` stands for each number from 0 to copies - 1."""
    rows: Size
    columns: Size
    copies: int = 1
    used: int = 1
    """How many of them one token is multiplied with."""

    @property
    def parameters(self) -> int:
        """Number of parameters of one such matrix."""
        return self.rows.value * self.columns.value
