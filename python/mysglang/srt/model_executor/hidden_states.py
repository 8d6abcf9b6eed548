"""HiddenStates: a decoder over pages, run on a step as it is: any mode, any size.

Only the last token of each row goes through the end of the last layer and to the logits, the tail of a step:

    layers 0 … n-2     all tokens
    layer n-1          keys and values of all tokens; queries, output and MLP of the last token of each row

Such a token attends over what is stored, so for the attention backend it is a decode step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, Embeds, ForwardBatch, Tail, TokenPlaces
from mysglang.srt.forward.worker_batch import EmbedColumns, ForwardMode, ModelWorkerBatch
from mysglang.srt.layers.attention.expanding import expansion_of
from mysglang.srt.layers.attention.graph import LateColumns, open_late
from mysglang.srt.model_executor.state_steps import NO_STATE_STEPS, StateStager
from mysglang.srt.model_executor.step_buffers import StepBuffers
from mysglang.srt.platforms.upload import Uploader


class Decoder(Protocol):
    """A model whose layers attend over pages: one that predicts tokens, or one that pools."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Computes [W, hidden_size] hidden states after the last norm, for the tokens that the batch wants."""
        ...


class HiddenStates:
    """Hidden states of a decoder, over pages."""

    def __init__(
        self,
        model: Decoder,
        backend: AttentionBackend,
        buffers: StepBuffers,
        uploader: Uploader,
        states: StateStager = NO_STATE_STEPS,
        *,
        all_tokens: bool = False,
    ) -> None:
        """`all_tokens`: True if the layers of another stage need the hidden states of all tokens in every step."""
        self._all_tokens = all_tokens
        self._states = states
        self._model = model
        self._backend = backend
        self._buffers = buffers
        self._uploader = uploader

    def of(
        self, batch: ModelWorkerBatch, *, all_tokens: bool = False, at: TokenPlaces | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Computes hidden states [W, hidden] of the last token of each row, or of all tokens if these are wanted. Also
        returns the step's columns on the device: `logits_rows` counts the W tokens.

        at: where the tokens are, if the device has computed it; the batch's own values are then not used.
        """
        buffers = self._buffers
        places = buffers.eager(batch, all_tokens=all_tokens or self._all_tokens)
        buffers.fill(batch, places)
        forward = buffers.begin(buffers.forward_batch(batch, places, self._backend), places)
        forward.states = self._states.begin(batch)
        if at is not None:
            forward = placed(forward, at)
        if batch.embeds is not None:
            forward.embeds = self._embeds(batch.embeds)
        forward.attn_metadata = self._backend.plan(forward)
        forward.expanded = expansion_of(self._backend, forward)
        if forward.tail is not None:
            forward.tail = tail_of(forward, forward.tail.tokens)
        return self._model.forward(forward), places.views

    def at_places(
        self,
        host: ModelWorkerBatch,
        at: TokenPlaces,
        slots: Tensor,
        extend_lens: Tensor,
        columns: Mapping[str, Tensor],
        *,
        row_room: int = 0,
    ) -> Tensor:
        """Computes [T, hidden] of all tokens of a step that is in the device's memory, as a capture needs it. Nothing
        is uploaded, and the backend takes lengths from the device.

        host: a step of the same shape, whose numbers say nothing. slots: [R] int64; extend_lens: [R] int32. row_room:
        see `ForwardBatch`. columns: those that the backend added to the upload (`late_columns`).
        """
        batch = ForwardBatch(
            mode=host.mode,
            host=host,
            input_ids=at.ids,
            positions=at.positions,
            slots=slots,
            seq_lens=at.seq_lens,
            extend_lens=extend_lens,
            out_cache_locs=at.locs,
            attn_backend=self._backend,
            attn_metadata=None,
            attn_columns=columns,
            row_room=row_room,
        )
        batch.attn_metadata = open_late(self._backend, batch)
        return self._model.forward(batch)

    def late_columns(self, width: int, prefix: str) -> LateColumns:
        """Returns what captured steps of rows with room for `width` tokens add to the upload; names begin with
        `prefix`.
        """
        return LateColumns(self._backend, width, prefix)

    def _embeds(self, given: EmbedColumns) -> Embeds:
        up = self._uploader.upload({"tokens": given.tokens.astype(np.int64), "vectors": given.vectors})
        return Embeds(up["tokens"], up["vectors"])


def placed(batch: ForwardBatch, at: TokenPlaces) -> ForwardBatch:
    """Returns the step with its tokens at these places."""
    return replace(batch, input_ids=at.ids, positions=at.positions, out_cache_locs=at.locs, seq_lens=at.seq_lens)


def tail_of(batch: ForwardBatch, tokens: Tensor) -> Tail:
    """Returns the tail of a step whose rows end with these tokens ([R] int64), with its attention planned."""
    step = replace(
        batch,
        mode=ForwardMode.DECODE,
        host=last_tokens_of(batch.host),
        input_ids=batch.input_ids.index_select(0, tokens),
        positions=batch.positions.index_select(0, tokens),
        extend_lens=torch.ones_like(batch.extend_lens),
        out_cache_locs=tuple(locs.index_select(0, tokens) for locs in batch.out_cache_locs),
        attn_metadata=None,
        expanded=None,
    )
    step.attn_metadata = batch.attn_backend.plan(step)
    return Tail(tokens, step)


def last_tokens_of(batch: ModelWorkerBatch) -> ModelWorkerBatch:
    """Returns the step with the last token of each row alone."""
    last = np.cumsum(batch.extend_lens) - 1
    return replace(
        batch,
        mode=ForwardMode.DECODE,
        input_ids=batch.input_ids[last],
        extend_lens=np.ones_like(batch.extend_lens),
        out_cache_locs=tuple(locs[last] for locs in batch.out_cache_locs),
    )
