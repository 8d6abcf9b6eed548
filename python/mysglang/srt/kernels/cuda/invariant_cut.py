"""How `invariant_attention` shares the keys of a row among programs, and the memory that it takes. Plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

SPAN = 512
"""Keys, a multiple of those of a tile."""
SPLIT_ROWS = 64
"""Most rows of a decode step whose spans are shared among programs: more rows keep the device busy with one program
each.
"""
PROGRAMS = 528
"""Number of programs that is worth starting: four for each multiprocessor of the largest device."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """How the keys of a row are divided: `splits` of `spans` spans each, distributed over `programs` programs."""

    splits: int
    spans: int
    programs: int


def cut_of(rows: int, max_context: int, num_kv_heads: int, *, decoding: bool) -> Cut:
    """Returns the cut for the sizes of a captured step; it depends on no length."""
    spans = -(-max_context // SPAN)
    if not decoding or rows > SPLIT_ROWS:
        return Cut(1, spans, 1)
    return Cut(spans, 1, min(spans, -(-PROGRAMS // (max(1, rows) * num_kv_heads))))


def partial_bytes(max_tokens: int, max_context: int, num_heads: int, head_dim: int) -> int:
    """Returns the most bytes of memory, beside q and the result, for a step of up to `max_tokens` new tokens and rows
    of `max_context` tokens.
    """
    parts = max(max_tokens, SPLIT_ROWS * -(-max_context // SPAN))
    return parts * num_heads * (head_dim + 2) * FLOAT_BYTES
