"""Job: a call on its way to requests for the scheduler, in pieces that are handed over one by one.

It knows how prompts are put together to pieces, and what was found out for one prompt that holds for others. It makes
no request. A piece of token ids is packed as int32 bytes and checked on the way: a batch may hold half a million ids,
each an object somewhere in memory, so they are gone through once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.unfold import Prompt, Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.tokenizer import IDS_PIECE

PIECE_IDS = 1 << 14
PIECE_TEXT = 1 << 15
"""Token ids, or characters, that are made requests at once: some third of a millisecond, and some milliseconds."""


class Settled(msgspec.Struct, frozen=True):
    """Values that are equal for prompts of a call with the same parameters and the same length of answers."""

    params: SamplingParams
    """Parameters for the scheduler, without the seed."""
    bad_words: list[bytes]
    processor: str | None
    grammar_after: bytes
    thought_start: int | None


class Piece(msgspec.Struct, frozen=True):
    """Prompts of a call that are made requests together."""

    first: int
    end: int
    size: int
    """In characters or tokens."""


class Job:
    """One call on its way to requests. Touched by one thread at a time."""

    __slots__ = ("bad_words", "beside", "caller", "obj", "pieces", "rids", "seeds", "settled", "unfolded")

    def __init__(self, obj: GenerateReqInput, unfolded: Unfolded, rids: Sequence[str], seeds: list[int]) -> None:
        """`rids`: the ids of the answers. `seeds`: drawn seeds, one for each prompt."""
        self.obj = obj
        self.unfolded = unfolded
        self.rids = rids
        self.seeds = seeds
        self.caller = CALLER.get()
        self.pieces = _pieces(unfolded.prompts)
        self.settled: dict[tuple[int, int, str | None], Settled] = {}
        """Results by their inputs: the params, the tokens of the answer, and the logit processor."""
        self.bad_words: dict[int, list[bytes]] = {}
        """Tokenized bad words by the params that name them, because prompts may share params."""
        words = {id(prompt.params): prompt.params.bad_words for prompt in unfolded.prompts}
        self.beside = sum([len(word) for some in words.values() for word in some])
        """Characters of all bad words."""


def _pieces(prompts: Sequence[Prompt]) -> list[Piece]:
    if len(prompts) == 1:
        return [Piece(0, 1, len(prompts[0].content))]
    most = PIECE_TEXT if isinstance(prompts[0].content, str) else PIECE_IDS
    pieces: list[Piece] = []
    first = size = 0
    for number, prompt in enumerate(prompts):
        length = len(prompt.content)
        if size and size + length > most:
            pieces.append(Piece(first, number, size))
            first, size = number, 0
        size += length
    pieces.append(Piece(first, len(prompts), size))
    return pieces


Ints = npt.NDArray[np.int32]


def packed_ids(ids: Sequence[int]) -> bytes:
    """Packs `ids` as int32 bytes, in pieces, so that other threads can run in between. Raises struct.error for an entry
    that is no integer, or too large.
    """
    if len(ids) <= IDS_PIECE:
        return struct.pack(f"{len(ids)}i", *ids)
    starts = range(0, len(ids), IDS_PIECE)
    return b"".join([packed_ids(ids[start : start + IDS_PIECE]) for start in starts])


def packed_prompts(rows: Sequence[Sequence[int]], last: int) -> list[bytes] | None:
    """Packs each row as int32 bytes; None if any entry is no token id from 0 to `last`."""
    try:
        packed = list(map(packed_ids, rows))
    except struct.error:
        return None
    whole: Ints = np.frombuffer(b"".join(packed), dtype=np.int32)
    if not within(whole, last):
        return None
    # True packs like 1, and is no token id.
    if (whole <= 1).any() and any(map(_has_bools, rows, packed)):
        return None
    return packed


def within(ids: Ints, last: int) -> bool:
    """True if all ids are from 0 to `last`."""
    return bool(ids.min(initial=0) >= 0 and ids.max(initial=0) <= last)


def _has_bools(ids: Sequence[int], packed: bytes) -> bool:
    """True if there are booleans among `ids`. Checks them in pieces, so that other threads can run in between."""
    small = np.flatnonzero(np.frombuffer(packed, dtype=np.int32) <= 1)
    for start in range(0, len(small), IDS_PIECE):
        if any(isinstance(ids[at], bool) for at in small[start : start + IDS_PIECE].tolist()):
            return True
    return False
