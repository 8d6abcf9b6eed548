"""Job: a call on its way to requests for the scheduler, in pieces that are handed over one by one.

Knows how prompts are put together to pieces, and what was found out for one that holds for others. Makes no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mysglang.srt.managers.caller import CALLER
from mysglang.srt.managers.unfold import Prompt, Unfolded
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

PIECE_IDS = 1 << 14
PIECE_TEXT = 1 << 15
"""Token ids, or characters, that are made requests at once: some third of a millisecond, and some milliseconds."""


class Settled(NamedTuple):
    """What prompts of a call have in common that share their parameters and the length of their answers."""

    params: SamplingParams
    """As the scheduler wants them, but for the seed."""
    bad_words: list[bytes]
    processor: str | None
    grammar_after: bytes
    thought_start: int | None


class Piece(NamedTuple):
    """Prompts of a call that are made requests together."""

    first: int
    end: int
    size: int
    """In characters or tokens."""


class Job:
    """One call on its way to requests. Touched by one thread at a time."""

    __slots__ = ("bad_words", "beside", "caller", "obj", "pieces", "rids", "seeds", "settled", "unfolded")

    def __init__(self, obj: GenerateReqInput, unfolded: Unfolded, rids: Sequence[str], seeds: list[int]) -> None:
        """rids: of the answers; seeds: drawn, one for each prompt."""
        self.obj = obj
        self.unfolded = unfolded
        self.rids = rids
        self.seeds = seeds
        self.caller = CALLER.get()
        self.pieces = _pieces(unfolded.prompts)
        self.settled: dict[tuple[int, int, str | None], Settled] = {}
        """By what it depends on: which params, tokens of the answer, logit processor."""
        self.bad_words: dict[int, list[bytes]] = {}
        """By the params that name them: prompts may share these, whose words are then tokenized once."""
        words = {id(prompt.params): prompt.params.bad_words for prompt in unfolded.prompts}
        self.beside = sum([len(word) for some in words.values() for word in some])
        """Characters of all bad words."""


def _pieces(prompts: Sequence[Prompt]) -> list[Piece]:
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
