"""Matrix: the tensors of a checkpoint that are compared with what its config.json says, and counted."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """One dimension of a matrix."""

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
