"""Log-probabilities at chosen positions: of one token, of the most likely, and of ids that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mysglang.srt.kernels.sampled_rows import RowLogprobs
from mysglang.srt.kernels.sampling import log_probabilities, most_likely

CHUNK_BYTES = 256 << 20
"""Limit in bytes for float32 log-probabilities that exist at once; those of a long prompt would take gigabytes."""


@dataclass(frozen=True, slots=True)
class LogprobQuery:
    """Log-probabilities that are wanted at N positions in addition to the chosen token's. The pairs are flat, ordered
    by position.
    """

    top: int
    """Most likely tokens to find, at each position."""
    pair_ends: npt.NDArray[np.int64]
    """[N + 1] on the host: the pairs of position i are pair_ends[i] … pair_ends[i + 1] - 1."""
    pair_rows: Tensor
    """[M] int64, the position of each pair."""
    pair_ids: Tensor
    """[M] int64."""

    @property
    def num_positions(self) -> int:
        return len(self.pair_ends) - 1


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities on the device. float32, ids int32."""

    chosen: Tensor
    """[N]"""
    top_vals: Tensor
    """[N, top], the most likely first."""
    top_ids: Tensor
    pair_vals: Tensor
    """[M]"""
    packed: Tensor | None = None
    """Memory that holds all of these but the pairs, of which there are none then, as `RowLogprobs` says."""

    def to_host(self, copy: Callable[[Tensor], Tensor]) -> Logprobs:
        """Returns the log-probabilities on the host, by one copy if they are in one piece of memory."""
        if self.packed is None:
            parts = (self.chosen, self.top_vals, self.top_ids, self.pair_vals)
            return Logprobs(*(copy(part) for part in parts))
        found = RowLogprobs.over(copy(self.packed), len(self.chosen))
        return Logprobs(found.chosen, found.top_values, found.top_ids, found.packed[:0], found.packed)


def find_logprobs(
    logits_of: Callable[[int, int], Tensor], chosen: Tensor, query: LogprobQuery, vocab_size: int
) -> Logprobs:
    """Computes the log-probabilities that the query asks for. `logits_of(begin, end)` returns the logits [end - begin,
    vocab] of a range of positions.

    chosen: [N] int64 ids. Works in runs of at most CHUNK_BYTES.
    """
    step = max(1, CHUNK_BYTES // (4 * vocab_size))
    parts = [
        _find(logits_of(begin, end), chosen[begin:end], query, begin, end)
        for begin in range(0, query.num_positions, step)
        for end in [min(begin + step, query.num_positions)]
    ]
    return parts[0] if len(parts) == 1 else join_logprobs(parts)


def join_logprobs(parts: Sequence[Logprobs]) -> Logprobs:
    """Returns the answers for all positions, those of the first part first."""
    return Logprobs(
        torch.cat([part.chosen for part in parts]),
        torch.cat([part.top_vals for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.pair_vals for part in parts]),
    )


def _find(logits: Tensor, chosen: Tensor, query: LogprobQuery, begin: int, end: int) -> Logprobs:
    logprobs = log_probabilities(logits)
    pairs = slice(int(query.pair_ends[begin]), int(query.pair_ends[end]))
    top_vals, top_ids = most_likely(logprobs, min(query.top, logprobs.shape[1]))
    return Logprobs(
        logprobs.gather(1, chosen[:, None]).squeeze(1),
        top_vals,
        top_ids.to(torch.int32),
        logprobs[query.pair_rows[pairs] - begin, query.pair_ids[pairs]],
    )
