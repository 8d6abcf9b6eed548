"""HiddenStates: a decoder over pages, run on a step as it is: any mode, any size."""

from __future__ import annotations

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, Embeds, ForwardBatch
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.device_tables import DeviceTables
from mysglang.srt.model_executor.step_inputs import Uploaded
from mysglang.srt.model_executor.tail import tail_of
from mysglang.srt.models.interfaces import Decoder


class HiddenStates:
    """Of a decoder, over pages."""

    def __init__(self, model: Decoder, backend: AttentionBackend, tables: DeviceTables) -> None:
        self._model = model
        self._backend = backend
        self._tables = tables

    def of(self, batch: ModelWorkerBatch, up: Uploaded) -> Tensor:
        """[W, hidden] of the last token of each row if `last_tokens` were uploaded, else of all tokens.

        up: the uploaded `token_columns` of the batch. The page table is up to date.
        """
        input_ids = up["input_ids"]
        if "token_slots" in up:
            input_ids = self._tables.resolve(input_ids, up["token_slots"])
        forward = ForwardBatch(
            mode=batch.mode,
            host=batch,
            input_ids=input_ids,
            positions=up["positions"],
            slots=up["slots"],
            seq_lens=up["seq_lens"],
            extend_lens=up["extend_lens"],
            out_cache_locs=self._tables.locs(up),
            attn_backend=self._backend,
            attn_metadata=None,
            embeds=Embeds(up["embed_tokens"], up["embed_vectors"]) if "embed_tokens" in up else None,
        )
        forward.attn_metadata = self._backend.plan(forward)
        if "last_tokens" in up:
            forward.tail = tail_of(forward, up["last_tokens"])
        return self._model.forward(forward)
