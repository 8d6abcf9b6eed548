"""FlatTops: the likeliest tokens at many positions as two arrays, since a tuple for each is long to write and to read.

val_flat, idx_flat: row-major [positions, k], of the positions behind the `null_prefix` that have none.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from mysglang.srt.managers.request_state import TokenLogprobs


class FlatTops:
    """What the chunks of one answer add up to, of its prompt or of its output."""

    def __init__(self, side: str, *, in_base64: bool) -> None:
        """`side`: input or output."""
        self._side = side
        self._in_base64 = in_base64
        self._vals: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        self._ids: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._nulls = 0

    def add(self, found: TokenLogprobs) -> None:
        """More positions. Those without a log-probability stand before all others: the first of a prompt has none."""
        there = ~np.isnan(found.vals)
        self._nulls += len(there) - int(np.count_nonzero(there))
        self._vals.append(found.top_vals[there])
        self._ids.append(found.top_ids[there])

    def fields(self, lowest: float) -> dict[str, Any]:
        """What meta_info says of them; `lowest` stands for minus infinity, which JSON cannot say."""
        if not self._vals:
            return {}
        vals = np.maximum(np.concatenate(self._vals), lowest).astype("<f4")
        ids = np.concatenate(self._ids).astype("<i4")
        name = f"{self._side}_top_logprobs"
        told: dict[str, Any] = {f"{name}_shape": list(vals.shape), f"{name}_null_prefix": self._nulls}
        for part, array, dtype in (("val_flat", vals, "float32"), ("idx_flat", ids, "int32")):
            if self._in_base64:
                told[f"{name}_{part}_b64"] = base64.b64encode(array.tobytes()).decode()
                told[f"{name}_{part}_b64_dtype"] = dtype
            else:
                told[f"{name}_{part}"] = array.ravel().tolist()
        return told
