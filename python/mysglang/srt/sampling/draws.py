"""The random number of a draw, from a request's seed and the length of its text: numpy only, equal on every machine.

A counter-based generator: nothing is carried from step to step, so a retracted, chunked or batched request draws what
it would have drawn alone. Mixing is splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", 2014), once over the seed and once more over the length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def uniforms(seeds: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, length)."""
    mixed = _mix(_mix(seeds.astype(np.uint64)) ^ lengths.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit words; array arithmetic wraps, as it must."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
