"""HiddenStates: a decoder over pages, run on a step as it is: any mode, any size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, Embeds
from mysglang.srt.forward.worker_batch import EmbedColumns, ModelWorkerBatch
from mysglang.srt.model_executor.step_buffers import StepBuffers
from mysglang.srt.model_executor.tail import tail_of
from mysglang.srt.models.interfaces import Decoder
from mysglang.srt.platforms.upload import Uploader


class HiddenStates:
    """Of a decoder, over pages."""

    def __init__(self, model: Decoder, backend: AttentionBackend, buffers: StepBuffers, uploader: Uploader) -> None:
        self._model = model
        self._backend = backend
        self._buffers = buffers
        self._uploader = uploader

    def of(self, batch: ModelWorkerBatch, *, all_tokens: bool = False) -> tuple[Tensor, Mapping[str, Tensor]]:
        """[W, hidden] of the last token of each row, or of all tokens where these are wanted; and the step's columns on
        the device: `logits_rows` counts the W tokens.
        """
        buffers = self._buffers
        places = buffers.eager(batch, all_tokens=all_tokens)
        buffers.fill(batch, places)
        forward = buffers.begin(buffers.forward_batch(batch, places, self._backend), places)
        if batch.embeds is not None:
            forward.embeds = self._embeds(batch.embeds)
        forward.attn_metadata = self._backend.plan(forward)
        if forward.tail is not None:
            forward.tail = tail_of(forward, forward.tail.tokens)
        return self._model.forward(forward), places.views

    def _embeds(self, given: EmbedColumns) -> Embeds:
        up = self._uploader.upload({"tokens": given.tokens.astype(np.int64), "vectors": given.vectors})
        return Embeds(up["tokens"], up["vectors"])
