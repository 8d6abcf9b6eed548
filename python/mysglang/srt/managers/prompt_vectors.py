"""Prompts that are vectors in the place of token ids (`input_embeds`), checked and packed for the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mysglang.srt.errors import InvalidRequest

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""The largest number of each dtype that a model may be computed in."""


def packed_vectors(given: Sequence[object], size: int, dtype: str) -> bytes:
    """Returns the rows as float32, one after another. size: numbers of a row. dtype: the model's.

    Raises InvalidRequest for rows that are no vectors of this size, or not finite in the model's dtype.
    """
    # Row by row: other threads can run in between.
    if not all(_is_vector(row, size) for row in given):
        message = f"input_embeds must be lists of {size} numbers, the size of the model's hidden states."
        raise InvalidRequest(message, param="input_embeds")
    with np.errstate(over="ignore"):
        rows = [np.asarray(row, dtype=np.float64).astype(np.float32) for row in given]
    most = LARGEST[dtype]
    # A NaN is not within it either.
    if not all((np.abs(row) <= most).all() for row in rows):
        message = (
            f"input_embeds must be finite in {dtype}, in which the model is computed: at most {most:g}, or -{most:g}."
        )
        raise InvalidRequest(message, param="input_embeds")
    return b"".join(row.tobytes() for row in rows)


def _is_vector(row: object, size: int) -> bool:
    return isinstance(row, list) and len(row) == size and set(map(type, row)) <= {int, float}
