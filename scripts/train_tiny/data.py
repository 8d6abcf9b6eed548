"""Packed training rows, made by many processes: shard k is a pure function of the seed and k.

Knows items and tokens. Knows no model and no device.
"""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mysglang.eval.exam import Item
from tiny_world import render, world
from tiny_world.long_context import LONG_PIECE

END_OF_TEXT = "<|endoftext|>"
CONTEXT = 8192
SHARD_ROWS = 64
OPEN_ROWS = 12
# One row in four is read as one long context, so that far positions are trained too; the others keep documents apart.
LONG_ROW_EVERY = 4

PAD, PROMPT, ANSWER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of CONTEXT + 1: `tokens` uint16, `kinds` uint8 (PAD, PROMPT, ANSWER), `starts` bool (a document begins)."""

    tokens: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray


def encode(tokenizer: Tokenizer, items: list[Item]) -> list[tuple[list[int], list[int]]]:
    """Token ids and kinds of each item, with the end-of-text token behind it."""
    end = tokenizer.encode(END_OF_TEXT).ids[0]
    pieces = [render.pieces(item) for item in items]
    encoded = iter(tokenizer.encode_batch_fast([piece.text for group in pieces for piece in group]))
    out = []
    for group in pieces:
        ids: list[int] = []
        kinds: list[int] = []
        for piece in group:
            part = next(encoded).ids
            ids += part
            kinds += [_kind(piece)] * len(part)
        out.append(([*ids, end], [*kinds, PAD]))
    return out


def _kind(piece: render.Piece) -> int:
    if piece.learned:
        return ANSWER
    return PROMPT if len(piece.text) < LONG_PIECE else PAD


def shard(tokenizer: Tokenizer, seed: int) -> Rows:
    """SHARD_ROWS rows; a document goes to the fullest open row that still has room for it and is never cut."""
    end = tokenizer.encode(END_OF_TEXT).ids[0]
    width = CONTEXT + 1
    tokens = np.full((SHARD_ROWS, width), end, np.uint16)
    kinds = np.zeros((SHARD_ROWS, width), np.uint8)
    starts = np.zeros((SHARD_ROWS, width), np.bool_)
    starts[:, 0] = True
    stream = world.training_items(seed)
    rows, filled, started = list(range(OPEN_ROWS)), [0] * SHARD_ROWS, OPEN_ROWS
    while rows:
        for ids, kind in encode(tokenizer, [next(stream) for _ in range(64)]):
            room = [row for row in rows if filled[row] + len(ids) <= width]
            if not room and rows:  # the fullest row is closed and a new one opened; what fits nowhere is left out
                rows.remove(max(rows, key=filled.__getitem__))
                if started < SHARD_ROWS:
                    rows.append(started)
                    room = [started] if len(ids) <= width else []
                    started += 1
            if not room:
                continue
            row = max(room, key=filled.__getitem__)
            at = filled[row]
            stop = at + len(ids)
            tokens[row, at:stop] = ids
            kinds[row, at:stop] = kind
            starts[row, at] = at == 0 or row % LONG_ROW_EVERY != 0
            filled[row] = stop
    return Rows(tokens, kinds, starts)


_worker_tokenizer: list[Tokenizer] = []


def _start_worker(path: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each: there are as many workers as cores
    _worker_tokenizer.append(Tokenizer.from_file(path))


def _work(seed: int) -> Rows:
    return shard(_worker_tokenizer[0], seed)


def stream(folder: Path, seed: int, shards: int, processes: int) -> Iterator[Rows]:
    """Shards 0 … shards-1 of a run, in order, made `processes` at a time."""
    pool = multiprocessing.get_context("fork").Pool(processes, _start_worker, (str(folder / "tokenizer.json"),))
    try:
        yield from pool.imap(_work, range(seed * 1_000_000, seed * 1_000_000 + shards))
    finally:
        pool.terminate()
