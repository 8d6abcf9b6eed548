"""What a backend must offer beside `AttentionBackend`, for its steps to be captured and replayed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, ForwardBatch
from mysglang.srt.forward.worker_batch import Ints


@runtime_checkable
class GraphAttentionBackend(AttentionBackend, Protocol):
    """Attention of decode steps whose tensors keep their addresses while their contents change.

    open_graph      once for each batch size, before the capture
    begin_step      captured: the work on the device that all layers of a step share
    forward         captured
    plan_replay     before each replay: the work on the host
    """

    def open_graph(self, batch: ForwardBatch) -> AttentionMetadata:
        """Metadata for all steps of this batch's size. `batch.host` gives the lengths of the first."""
        ...

    def begin_step(self, batch: ForwardBatch) -> None:
        """Queue what depends on the batch's tensors alone."""
        ...

    def plan_replay(self, metadata: AttentionMetadata, seq_lens: Ints) -> None:
        """Plan for rows of these lengths (padding rows have 1). The tensors' new contents may still be on their way."""
        ...

    def covers(self, seq_lens: Ints) -> bool:
        """Whether buffers made for replays are large enough for these rows."""
        ...
