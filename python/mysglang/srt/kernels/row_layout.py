"""The memory layout of the rows that `sample_rows` reads. numpy only: the table is filled where torch is not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROW = np.dtype(
    [
        ("seed", "<i8"),
        ("line", "<i4"),
        ("top_k", "<i4"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("frequency", "<f4"),
        ("presence", "<f4"),
        ("repetition", "<f4"),
        ("top_logprobs", "<i4"),
        ("bias_begin", "<i4"),
        ("bias_end", "<i4"),
        ("forbidden_begin", "<i4"),
        ("forbidden_end", "<i4"),
        ("unused", "<i4"),
    ]
)
"""How one row is sampled.

seed           of its random numbers
line           its line in the table of counts; -1: no penalties
top_k          1: the most likely token is taken, and the temperature is 1
top_logprobs   number of most likely tokens to report; -1: no log-probabilities at all
bias_…         the run of entries (BIAS) that are added to its logits
forbidden_…    the run of entries whose tokens it must not take, whatever is added to them
"""
BIAS = np.dtype([("id", "<i4"), ("value", "<f4")])

MOST_TOKENS = 320_000
"""Largest vocabulary that kernels of `sample_rows` need to take."""

NEUTRAL = np.array([(0, -1, 1, 1, 1, 0, 0, 0, 1, -1, 0, 0, 0, 0, 0)], dtype=ROW)[0]
"""A row that takes its most likely token, and of which nothing else is asked."""


def plain_rows(rows: npt.NDArray[np.void]) -> bool:
    """True if nothing but a temperature is asked of these rows [R] of ROW: no edits, filters or log-probabilities.
    Greedy rows have no filters.
    """
    edited = (rows["line"] >= 0) | (rows["bias_begin"] < rows["bias_end"])
    edited |= rows["forbidden_begin"] < rows["forbidden_end"]
    filtered = (rows["top_k"] < MOST_TOKENS) | (rows["top_p"] < 1) | (rows["min_p"] > 0)
    asks = edited | (filtered & (rows["top_k"] != 1)) | (rows["top_logprobs"] >= 0)
    return not bool(asks.any())
