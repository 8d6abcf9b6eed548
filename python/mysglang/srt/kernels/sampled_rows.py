"""sample_rows: from the logits of decode steps to tokens, with everything that sampling features ask of a row.

The reference goes through the rows one by one, in the order of the sampling features: penalties, biases, forbidden
ends, temperature, filters and draw. The random number is that of `sampling/draws.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.kernels.op import Op
from mysglang.srt.kernels.row_layout import BIAS, ROW
from mysglang.srt.kernels.sampling import Filters, draw_tokens, log_probabilities, most_likely

_WORD = (1 << 64) - 1


class RowLogprobs(NamedTuple):
    """Log-probabilities after temperature, before the filters, in one piece of memory."""

    packed: Tensor
    """[R * (1 + 2 N)] float32: all that follows, one after the other; ids are bits of int32."""
    chosen: Tensor
    """[R] float32, of the tokens. Undefined where a row's `top_logprobs` is -1."""
    top_values: Tensor
    """[R, N] float32 of the most likely tokens, the most likely first. Undefined beyond a row's `top_logprobs`."""
    top_ids: Tensor
    """[R, N] int32"""

    @classmethod
    def over(cls, packed: Tensor, rows: int) -> RowLogprobs:
        """Returns the log-probabilities in a piece of this layout."""
        chosen, best = packed[:rows], packed[rows:].view(2, rows, (len(packed) - rows) // (2 * rows))
        return cls(packed, chosen, best[0], best[1].view(torch.int32))


def _sample_rows(
    logits: Tensor,
    rows: Tensor,
    bias: Tensor,
    counts: Tensor,
    greedy: Tensor,
    lengths: Tensor,
    slots: Tensor,
    newest: Tensor,
    top: int | None,
    plain: bool = False,
) -> tuple[Tensor, RowLogprobs | None]:
    """Returns the tokens [R] int64 of logits [R, vocab], -1 where greedy is, written to newest[slots] too, as 0 for -1.

    rows: R or more items of ROW; bias: items of BIAS; both dense, of any dtype.
    counts: [lines, vocab] int32, twice the times that a token was generated, plus one if the prompt has it. The chosen
    tokens of rows with a line are counted.
    greedy: [R] int64, the likeliest tokens of the bare logits, -1 for a row with numbers that are not finite.
    lengths: [R] int32 tokens of each row's text so far. slots: [R] int64. newest: [slots] int64.
    top: N, how many most likely tokens are reported at most; None: no log-probabilities at all.
    plain: the rows are plain (`RowTable.plain`) and `top` is None, which a kernel may make use of. Tokens are the same.
    """
    table, entries = rows.cpu().numpy().view(ROW), bias.cpu().numpy().view(BIAS)
    tokens = greedy.clone()
    logprobs = None
    if top is not None:
        logprobs = RowLogprobs.over(logits.new_zeros(len(logits) * (1 + 2 * top), dtype=torch.float32), len(logits))
    for index, row in enumerate(table[: len(logits)]):
        if tokens[index] < 0:
            continue
        line = None if row["line"] < 0 else counts[int(row["line"])]
        x = _edited(logits[index].float(), row, entries, line)
        if row["top_k"] == 1:
            tokens[index] = x.argmax()
        else:
            tokens[index] = _drawn(x, row, int(lengths[index]))
        if line is not None:
            line[tokens[index]] += 2
        if logprobs is not None and row["top_logprobs"] >= 0:
            known = log_probabilities.reference((x / float(row["temperature"]))[None])
            logprobs.chosen[index] = known[0, tokens[index]]
            wanted = int(row["top_logprobs"])
            values, ids = most_likely.reference(known, wanted)
            logprobs.top_values[index, :wanted], logprobs.top_ids[index, :wanted] = values[0], ids[0].int()
    newest.index_copy_(0, slots, tokens.clamp(min=0))
    return tokens, logprobs


def _edited(x: Tensor, row: np.void, entries: np.ndarray, line: Tensor | None) -> Tensor:
    """Returns the row's logits after all edits, before the temperature."""
    if line is not None:
        generated, strength = line >> 1, float(row["repetition"])
        x = x - float(row["frequency"]) * generated
        x = x - float(row["presence"]) * (generated > 0)
        x = (x / strength).where(x > 0, x * strength).where(line > 0, x)
    added = entries[row["bias_begin"] : row["bias_end"]]
    x = x.index_add(0, x.new_tensor(added["id"].copy(), dtype=torch.int64), x.new_tensor(added["value"].copy()))
    forbidden = entries["id"][row["forbidden_begin"] : row["forbidden_end"]]
    return x.index_fill(0, x.new_tensor(forbidden.copy(), dtype=torch.int64), float("-inf"))


def _drawn(x: Tensor, row: np.void, length: int) -> Tensor:
    def one(value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=x.device)

    number = (_mix(_mix(int(row["seed"]) & _WORD) ^ length) >> 11) * 2.0**-53
    filters = Filters(
        one(int(row["top_k"]), torch.int32),
        one(float(row["top_p"]), torch.float32) if row["top_p"] < 1 else None,
        one(float(row["min_p"]), torch.float32),
    )
    temperature = one(float(row["temperature"]), torch.float32)
    return draw_tokens.reference(x[None], one(number, torch.float64), temperature, filters)[0]


def _mix(x: int) -> int:
    """Computes splitmix64 on Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


sample_rows = Op("sample_rows", reference=_sample_rows, cuda="mysglang.srt.kernels.cuda.sampled_rows:sample_rows")
