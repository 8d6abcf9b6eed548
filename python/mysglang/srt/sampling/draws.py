"""Random numbers for sampling. Each is a function of the request's seed and the number of its tokens, computed with
numpy alone, so it is the same on every machine.

This is a counter-based generator: it keeps no state from step to step, so a retracted, chunked or batched request
samples the tokens that it would have sampled alone. The numbers are mixed by splitmix64 (Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators", 2014), once for the seed and once for the length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def uniforms(seeds: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) for each (seed, length)."""
    mixed = _mix(_mix(seeds.astype(np.uint64)) ^ lengths.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns a bijection of 64-bit words; array arithmetic wraps, as it must."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
