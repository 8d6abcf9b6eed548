"""SpaceShape: one numbering of pages. Scheduler and worker agree on a list of them, in this order:

    spaces[0]     the rows' own: rows and the prefix cache number tokens by its pages; layers that see all keys
    spaces[1 …]   one for each window, ascending, whose layers keep only what a row may still see

Each has an allocator, a page table on the device and a null page 0, which padding, the tails of tables and holes point
at. A model without windows has the first alone; one whose layers all have windows has a first without any layer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpaceShape:
    """The size of one space."""

    num_pages: int
    """Pages that may be allocated. They are numbered 1 … num_pages; page 0 is for padding."""
    page_size: int
    """Tokens of a page, which are the span of an entry of its page table."""
    window: int | None = None
    """Keys that a query of its layers sees, itself included; None: all."""

    @property
    def num_tokens(self) -> int:
        """Tokens that all pages hold together."""
        return self.num_pages * self.page_size


@dataclass(frozen=True, slots=True)
class StateShape:
    """The states of a model with layers that keep one of a fixed size for each request. They are no pages: a request
    has one state, however long it is, and a checkpoint of the prefix cache is one.
    """

    num_states: int
    """Numbered 0 … num_states - 1; at least one for each request that runs."""
    interval: int
    """Checkpoints of prompts are made behind a multiple of so many tokens."""
