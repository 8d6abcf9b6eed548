"""ModelWorkerBatch -> the arrays that go to the device. numpy only; names here are names of the upload.

Rows of the batch become rows of the logits: only rows that yield a token have logits, so an index that counts batch
rows is renumbered, and entries of other rows are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from mysglang.srt.forward.worker_batch import (
    HiddenColumns,
    Ints,
    LogprobColumns,
    ModelWorkerBatch,
    TableWrites,
    TokenMask,
)
from mysglang.srt.platforms.upload import Column
from mysglang.srt.sampling.feature import Arrays, FeatureColumns
from mysglang.srt.sampling.logits_rows import LogitsRows

Columns = dict[str, Column]
Indices = npt.NDArray[np.int64]


def sampled_columns(batch: ModelWorkerBatch) -> Columns:
    """Returns the columns of a captured step with new tokens: which of its rows' last tokens get logits, and their
    slots.
    """
    return {"logits_rows": np.flatnonzero(batch.yields), "sample_slots": batch.slots[batch.yields].astype(np.int64)}


def wants_all_tokens(batch: ModelWorkerBatch) -> bool:
    """True if hidden states of tokens other than the last of each row are needed, for logits or for themselves."""
    return batch.hidden is not None or (batch.logprobs is not None and len(batch.logprobs.prompt_positions) > 0)


def hidden_column(hidden: HiddenColumns | None) -> Columns:
    """Returns which tokens' hidden states are wanted."""
    return {} if hidden is None else {"hidden_tokens": hidden.tokens.astype(np.int64)}


def positions_of(batch: ModelWorkerBatch) -> Indices:
    """Returns the position of each token in its row, [T]."""
    ends = batch.seq_lens.astype(np.int64)
    if batch.mode.is_decode:
        return ends - 1
    lens = batch.extend_lens.astype(np.int64)
    # A row's first token has index cumsum - len in the columns, and position end - len.
    shift = ends - np.cumsum(lens)
    positions: Indices = np.arange(batch.num_tokens, dtype=np.int64) + np.repeat(shift, lens)
    return positions


def table_columns(writes: TableWrites | None, max_pages: int) -> Columns:
    """Returns the flat indices of page table entries, and their new values in the table of each space."""
    if writes is None or not len(writes.slots):
        return {}
    columns: Columns = {"table_entries": writes.slots.astype(np.int64) * max_pages + writes.columns}
    for name, pages in zip(page_columns(len(writes.pages)), writes.pages, strict=True):
        columns[name] = pages.astype(np.int32, copy=False)
    return columns


@cache
def loc_columns(spaces: int) -> tuple[str, ...]:
    """Returns one column name for each page space. The column has the KV slots that a step writes in that space."""
    return tuple(f"out_cache_loc.{space}" for space in range(spaces))


@cache
def page_columns(spaces: int) -> tuple[str, ...]:
    """Returns one column name for each page space. The column has the new entries of that space's page table."""
    return tuple(f"table_pages.{space}" for space in range(spaces))


def feature_columns(part: FeatureColumns, logits: LogitsRows) -> Columns:
    """Returns one feature's part in a step under names of the feature's own; nothing if none of its rows has logits."""
    if part.rows is None:
        return named(part.feature, part.columns)
    index, at = logits.entries(part.rows)
    if not len(at):
        return {}
    return named(part.feature, {"rows": at, **{name: column[index] for name, column in part.columns.items()}})


def named(feature: str, columns: Arrays) -> Columns:
    """Returns the columns under names that no other feature has."""
    return {f"{feature}.{name}": column for name, column in columns.items()}


def mask_columns(mask: TokenMask, logits: LogitsRows) -> Columns:
    """Returns the columns of a mask whose rows all have logits."""
    rows = logits.only(mask.rows)
    return {"mask_rows": rows if mask.places is None else rows + mask.places, "mask_bits": mask.bits}


@dataclass(frozen=True, slots=True)
class LogprobLayout:
    """N positions whose log-probabilities are wanted, and the layout of their ragged parts. Host only."""

    top_num: Ints
    """[N]"""
    pair_ends: Indices
    """[N + 1]"""
    rows: Indices | None = None
    """[N] which of the rows on the device the positions are; None: all of them, in order."""

    @property
    def top(self) -> int:
        return int(self.top_num.max())


def output_logprob_columns(
    logprobs: LogprobColumns, yields: npt.NDArray[np.bool_], logits: LogitsRows
) -> tuple[LogprobLayout, Columns] | None:
    """Returns the columns of output log-probabilities. Positions are the rows that ask and yield."""
    rows = np.flatnonzero(logprobs.rows & yields)
    if not len(rows):
        return None
    found, columns = _ragged(logprobs, rows)
    return found, {f"output_{name}": column for name, column in {"rows": logits.only(rows), **columns}.items()}


def prompt_logprob_columns(logprobs: LogprobColumns) -> tuple[LogprobLayout, Columns] | None:
    """Returns the columns of prompt log-probabilities. Positions are those of prompt tokens, rows in order."""
    if not len(logprobs.prompt_positions):
        return None
    found, columns = _ragged(logprobs, np.repeat(np.arange(len(logprobs.rows)), logprobs.prompt_counts))
    columns["positions"] = logprobs.prompt_positions.astype(np.int64)
    columns["targets"] = logprobs.prompt_targets.astype(np.int64)
    return found, {f"prompt_{name}": column for name, column in columns.items()}


def _ragged(logprobs: LogprobColumns, rows: Indices) -> tuple[LogprobLayout, Columns]:
    """Returns the layout of positions that stand for these batch rows, and the flat (position, id) pairs."""
    counts = np.array([len(ids) for ids in logprobs.token_ids], dtype=np.int64)[rows]
    pair_ends = np.concatenate([[0], np.cumsum(counts)])
    ids = [logprobs.token_ids[row] for row in rows.tolist()]
    columns: Columns = {
        "pair_rows": np.repeat(np.arange(len(rows), dtype=np.int64), counts),
        "pair_ids": np.concatenate(ids).astype(np.int64),
    }
    return LogprobLayout(logprobs.top_num[rows], pair_ends), columns
