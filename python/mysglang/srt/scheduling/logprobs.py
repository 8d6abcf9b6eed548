"""LogprobBook: the log-probabilities of one request, gathered step by step until they are sent.

Only requests that asked have one, so nothing here is on the path of the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mysglang.srt.forward.outputs import PositionLogprobs
from mysglang.srt.forward.worker_batch import Floats, Ints, LogprobColumns
from mysglang.srt.messages.codec import unpack_ids
from mysglang.srt.messages.outputs import RowLogprobs
from mysglang.srt.messages.requests import LogprobRequest


class _Columns:
    """Growing columns of one kind (prompt or output): a list of pieces for each column."""

    __slots__ = ("chosen", "ids", "token_ids_vals", "top_ids", "top_vals")

    def __init__(self) -> None:
        self.chosen: list[Floats] = []
        self.ids: list[Ints] = []
        self.top_vals: list[Floats] = []
        self.top_ids: list[Ints] = []
        self.token_ids_vals: list[Floats] = []

    def add(self, ids: Ints, piece: PositionLogprobs) -> None:
        """Append positions; `ids` are the tokens that stand there."""
        self.chosen.append(piece.chosen)
        self.ids.append(ids)
        self.top_vals.append(piece.top_vals)
        self.top_ids.append(piece.top_ids)
        self.token_ids_vals.append(piece.token_ids_vals)

    def take(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The bytes of every column since the last call."""
        pieces: tuple[list[Floats] | list[Ints], ...]
        pieces = (self.chosen, self.ids, self.top_vals, self.top_ids, self.token_ids_vals)
        vals, ids, top_vals, top_ids, token_ids_vals = (
            b"".join(piece.tobytes() for piece in column) for column in pieces
        )
        for column in pieces:
            column.clear()
        return vals, ids, top_vals, top_ids, token_ids_vals


class LogprobBook:
    """What one request wants of log-probabilities, and what it has so far."""

    __slots__ = ("_input", "_output", "prompt_done", "prompt_start", "token_ids", "top_num")

    def __init__(self, wish: LogprobRequest) -> None:
        self.prompt_start = wish.prompt_start
        self.top_num = wish.top_num
        self.token_ids: Ints = unpack_ids(wish.token_ids)
        self.prompt_done = wish.prompt_start < 0
        """Whether the prompt's are complete: a request that is retracted later need not compute them again."""
        self._input = _Columns()
        self._output = _Columns()

    def open_prompt(self, first_token: int) -> None:
        """Start the prompt columns. Position 0 has no logprob, so it stands as NaN."""
        self._input = _Columns()
        if self.prompt_start == 0:
            nothing = np.full(1, np.nan, dtype=np.float32)
            no_top = np.full(self.top_num, -1, dtype=np.int32)
            piece = PositionLogprobs(
                nothing, np.repeat(nothing, self.top_num), no_top, np.repeat(nothing, len(self.token_ids))
            )
            self._input.add(np.asarray([first_token], dtype=np.int32), piece)

    def add_prompt(self, ids: Ints, piece: PositionLogprobs) -> None:
        """Take the logprobs of the prompt tokens `ids`."""
        self._input.add(ids, piece)

    def add_output(self, ids: Ints, piece: PositionLogprobs) -> None:
        """Take the logprobs of the sampled tokens `ids`."""
        self._output.add(ids, piece)

    def take(self) -> RowLogprobs:
        """What became known since the last call, packed for the wire; prompt columns once they are complete."""
        nothing = (b"",) * 5
        return RowLogprobs(*self._output.take(), *(self._input.take() if self.prompt_done else nothing))


def by_row(source: PositionLogprobs, counts: Ints, asked: LogprobColumns) -> Iterator[tuple[int, PositionLogprobs]]:
    """(row, its part) for every row with positions in `source`; row r has `counts[r]` of them, rows in order."""
    position = top = wanted = 0
    for row in np.flatnonzero(counts).tolist():
        n = int(counts[row])
        tops, ids = n * int(asked.top_num[row]), n * len(asked.token_ids[row])
        yield (
            row,
            PositionLogprobs(
                source.chosen[position : position + n],
                source.top_vals[top : top + tops],
                source.top_ids[top : top + tops],
                source.token_ids_vals[wanted : wanted + ids],
            ),
        )
        position, top, wanted = position + n, top + tops, wanted + ids
