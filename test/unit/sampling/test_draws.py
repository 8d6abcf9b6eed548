"""The random numbers: the same for equal (seed, length), spread evenly, unrelated for neighbours."""

import numpy as np

from mysglang.srt.sampling.draws import uniforms


def test_is_a_function_of_seed_and_length() -> None:
    seeds = np.array([7, 8, 7, -1], dtype=np.int64)
    lengths = np.array([1, 1, 2, 1], dtype=np.int32)
    together = uniforms(seeds, lengths)
    assert len(set(together.tolist())) == 4
    for i in range(4):
        assert uniforms(seeds[i : i + 1], lengths[i : i + 1])[0] == together[i]


def test_never_changes() -> None:
    """A seed that was published once must go on giving the same text."""
    found = uniforms(np.array([0, 42, -1], dtype=np.int64), np.array([0, 10, 100000], dtype=np.int32))
    assert found.tolist() == [0.6524484863740322, 0.6793914679290497, 0.03196144072915519]


def test_is_uniform_over_lengths_and_over_seeds() -> None:
    n = 20000
    counted = np.arange(n)
    for found in (
        uniforms(np.full(n, 3, dtype=np.int64), counted.astype(np.int32)),
        uniforms(counted.astype(np.int64), np.full(n, 3, dtype=np.int32)),
    ):
        assert ((found >= 0) & (found < 1)).all()
        histogram = np.histogram(found, bins=20, range=(0, 1))[0]
        assert np.abs(histogram - n / 20).max() < 5 * np.sqrt(n / 20)
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03
