"""EAGLE3: a draft of one layer over hidden states of three layers of the target; chains of k drafts, no tree.

step n     prompt or verification by the target -> hidden states of layers 2, n/2, n-3 of each token
           the draft over the same rows          -> its keys and values, k drafts for each slot
step n+1   rows [newest, draft 1 … draft k], whose start and drafts only the device knows
"""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.forward_mode import ForwardMode
from mysglang.srt.forward.outputs import BatchResult, StepOutput
from mysglang.srt.forward.worker import Worker, WorkerCapacity
from mysglang.srt.forward.worker_batch import DRAFTED, ON_DEVICE, Ints, ModelWorkerBatch, Slots
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.programs import Program, Runnable
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer

DRAFTS = 3


class Eagle3Draft:
    """`programs.ServedModel`: the second model of an executor, whose pages have the numbers of the target's."""

    attention = "the target's"

    def __init__(self, model: CheckpointModel, target: ModelStores, heads: int, head_dim: int) -> None:
        self.model = model
        self._hidden_size = heads * head_dim
        spec = AttentionSpec(layer_id=0, num_heads=heads, num_kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5)
        self.stores = ModelStores((spec,), target.dtype)
        """CANNOT: that these are advisory. They are planned, copied to the host and identified like the target's."""

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return 0

    def ready(self, memory: ModelMemory) -> Runnable:
        """Sayable: what is kept for each slot, and that it may be lost. CANNOT: get it. A declaration brings no tensor
        that two programs share, is in no budget, and no step resets what it names when it opens a slot.
        """
        kept = [
            SlotBuffer("eagle3_hidden", 3 * self._hidden_size * 2, Keeping.ADVISORY),
            SlotBuffer("eagle3_drafts", 8 * DRAFTS, Keeping.ADVISORY),
        ]
        return Runnable(Verification(self, memory), warm_ups=(), slot_buffers=kept)


class Verification:
    """`programs.Program`: what the target makes of rows with drafts, and after it the drafts of the next step."""

    name = "verification"
    takes = f"decode steps with {DRAFTS} drafts in each row"

    def __init__(self, draft: Eagle3Draft, memory: ModelMemory) -> None:
        """CANNOT: name the target, or its hidden states. An executor makes programs of its first model alone."""
        self._draft = draft
        self._tables = memory.tables

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return batch.mode.is_decode and bool((batch.extend_lens <= 1 + DRAFTS).all())

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        """CANNOT, of a chunk that does not end its prompt: the draft's key of a token is made of the token after it,
        and the batch does not say the first token of the next chunk. CANNOT write keys of drafts beyond the rows' own
        tokens: no memory was reserved for them, least of all behind the chunk that ends a prompt.
        """
        assert batch.hidden is None, "CANNOT: HiddenColumns are of the last layer, and go to the host"
        accepted = np.ones(batch.num_rows, dtype=np.int32)
        return BatchResult(lambda: StepOutput(tokens=np.zeros(batch.num_rows, dtype=np.int32), counts=accepted))


class Eagle3Worker:
    """`forward.worker.Worker`."""

    tokens_per_step = 1 + DRAFTS
    late_lengths = True

    def __init__(self, capacity: WorkerCapacity, verification: Program) -> None:
        self.capacity = capacity
        self._verification = verification

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        return self._verification.run(batch)


def late_step(slots: Slots, high: Ints) -> ModelWorkerBatch:
    """Rows behind a step in flight: start, drafts and KV slots are the device's, and memory reaches to `high`."""
    rows, width = len(slots), 1 + DRAFTS
    ids = np.full((rows, width), DRAFTED, dtype=np.int32)
    ids[:, 0] = ON_DEVICE
    return ModelWorkerBatch(
        mode=ForwardMode.DECODE,
        input_ids=ids.reshape(-1),
        slots=slots,
        seq_lens=np.full(rows, ON_DEVICE, dtype=np.int32),
        extend_lens=np.full(rows, width, dtype=np.int32),
        out_cache_locs=(np.full(rows * width, ON_DEVICE, dtype=np.int32),),
        yields=np.ones(rows, dtype=np.bool_),
        high_lens=high,
    )


def worker(capacity: WorkerCapacity, draft: Eagle3Draft, memory: ModelMemory) -> Worker:
    """What the scheduler is given."""
    return Eagle3Worker(capacity, draft.ready(memory).eager)
