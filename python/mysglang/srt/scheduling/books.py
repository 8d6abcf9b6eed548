"""Books: what one request gathers beside its tokens, step by step, until it is sent: log-probabilities, hidden states.

Only requests that asked have a book, so nothing here is on the path of the others. The hidden state of a position is
what the logits of the token after it are made of.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mysglang.srt.forward.outputs import PositionLogprobs
from mysglang.srt.forward.worker_batch import Bools, Floats, HiddenColumns, Ints, LogprobColumns
from mysglang.srt.messages.outputs import RowLogprobs
from mysglang.srt.messages.packing import unpack_ids
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
        """Appends positions; `ids` are the tokens at these positions."""
        self.chosen.append(piece.chosen)
        self.ids.append(ids)
        self.top_vals.append(piece.top_vals)
        self.top_ids.append(piece.top_ids)
        self.token_ids_vals.append(piece.token_ids_vals)

    def take(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Returns the bytes that were added to each column since the last call."""
        pieces: tuple[list[Floats] | list[Ints], ...]
        pieces = (self.chosen, self.ids, self.top_vals, self.top_ids, self.token_ids_vals)
        vals, ids, top_vals, top_ids, token_ids_vals = (
            b"".join(piece.tobytes() for piece in column) for column in pieces
        )
        for column in pieces:
            column.clear()
        return vals, ids, top_vals, top_ids, token_ids_vals


class LogprobBook:
    """The log-probabilities that one request asks for, and those that it has so far."""

    __slots__ = ("_input", "_output", "prompt_done", "prompt_start", "token_ids", "top_num")

    def __init__(self, wish: LogprobRequest) -> None:
        self.prompt_start = wish.prompt_start
        self.top_num = wish.top_num
        self.token_ids: Ints = unpack_ids(wish.token_ids)
        self.prompt_done = wish.prompt_start < 0
        """True if the prompt's log-probabilities are complete: a request that is retracted later need not compute them
        again.
        """
        self._input = _Columns()
        self._output = _Columns()

    def open_prompt(self, first_token: int) -> None:
        """Starts the prompt columns. Position 0 has no logprob, so its value is NaN."""
        self._input = _Columns()
        if self.prompt_start == 0:
            nothing = np.full(1, np.nan, dtype=np.float32)
            no_top = np.full(self.top_num, -1, dtype=np.int32)
            piece = PositionLogprobs(
                nothing, np.repeat(nothing, self.top_num), no_top, np.repeat(nothing, len(self.token_ids))
            )
            self._input.add(np.asarray([first_token], dtype=np.int32), piece)

    def add_prompt(self, ids: Ints, piece: PositionLogprobs) -> None:
        """Takes the logprobs of the prompt tokens `ids`."""
        self._input.add(ids, piece)

    def add_output(self, ids: Ints, piece: PositionLogprobs) -> None:
        """Takes the logprobs of the sampled tokens `ids`."""
        self._output.add(ids, piece)

    def take(self) -> RowLogprobs:
        """Returns the log-probabilities that were added since the last call, packed for the wire. Prompt columns are
        returned once they are complete.
        """
        nothing = (b"",) * 5
        return RowLogprobs(*self._output.take(), *(self._input.take() if self.prompt_done else nothing))


def by_row(source: PositionLogprobs, counts: Ints, asked: LogprobColumns) -> Iterator[tuple[int, PositionLogprobs]]:
    """Yields (row, its part) for every row with positions in `source`; row r has `counts[r]` of them, rows in order."""
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


class HiddenBook:
    """The hidden states that one request asks for, and those that it has so far."""

    __slots__ = ("_new", "have")

    def __init__(self, first: int) -> None:
        """`first`: the position of the first hidden state that is wanted; all later ones are wanted too."""
        self.have = first
        """Positions before this one are sent or gathered: what is computed again is not sent again."""
        self._new: list[Floats] = []

    def add(self, position: int, states: Floats) -> None:
        """Takes the states [n, hidden_size] of the positions from `position` on.

        States that are not finite are left out, and all behind them: they come again if the request is computed again.
        """
        if position == self.have and np.isfinite(states).all():
            self._new.append(states)
            self.have += len(states)

    def take(self) -> bytes:
        """Returns the float32 bytes of the states that were added since the last call."""
        told = b"".join(states.tobytes() for states in self._new)
        self._new.clear()
        return told


def hidden_by_row(states: Floats, asked: HiddenColumns, alive: Bools) -> Iterator[tuple[int, Floats]]:
    """Yields (row, its states) for every living row that has some."""
    ends = np.cumsum(asked.counts)
    for row in np.flatnonzero((asked.counts > 0) & alive).tolist():
        yield row, states[ends[row] - asked.counts[row] : ends[row]]
