"""EAGLE3: a draft of one layer over hidden states of three layers of the target; chains of k drafts, no tree.

step n     prompt or verification by the target -> hidden states of layers 2, n/2, n-3 of each token
           the draft over the same rows          -> its keys and values, k drafts for each slot
step n+1   rows [newest, draft 1 … draft k], whose start and drafts only the device knows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionSpec, TokenPlaces
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import Worker, WorkerCapacity
from mysglang.srt.forward.worker_batch import DRAFTED, ON_DEVICE, ForwardMode, Ints, ModelWorkerBatch, Slots
from mysglang.srt.layers.attention.graph import GraphColumns
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.late_rows import DraftStep
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.programs import Beside, Drafter, HelpingModel, Program, RoomyStep
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.platforms.slot_buffer import Keeping, SlotBuffer

DRAFTS = 3


class Eagle3Draft:
    """`programs.HelpingModel`: the second model of an executor, whose pages have the numbers of the target's."""

    def __init__(self, model: CheckpointModel, target: ModelStores, heads: int, head_dim: int) -> None:
        self.model = model
        self._hidden_size = heads * head_dim
        spec = AttentionSpec(layer_id=0, num_heads=heads, num_kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5)
        self.stores = ModelStores((spec,), target.dtype)
        """CANNOT: that these are advisory. A host tier would have to copy and identify them like the target's."""

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return 0

    def ready(self, memory: ModelMemory, beside: Beside) -> Beside:
        return Beside(drafter=Eagle3Chain(memory, self._hidden_size))


class Eagle3Chain:
    """`programs.Drafter`."""

    columns: Sequence[GraphColumns] = ()

    def __init__(self, memory: ModelMemory, hidden_size: int) -> None:
        self._tables = memory.tables
        self.slot_buffers = [
            SlotBuffer("eagle3_hidden", 3 * hidden_size * 2, Keeping.ADVISORY),
            SlotBuffer("eagle3_drafts", 8 * DRAFTS, Keeping.ADVISORY),
        ]
        """Sayable: what is kept for each slot, and that it may be lost. CANNOT: get it. A declaration brings no tensor
        that two programs share, is in no budget, and no step resets what it names when it opens a slot.
        """

    def propose(self, step: DraftStep) -> Tensor:
        """Called before the target's pass, with the tokens and places of the step. CANNOT have the hidden states of the
        target's layers: the pass before is not reported. CANNOT write keys of drafts beyond the rows' own tokens: no
        memory was reserved for them, least of all behind the chunk that ends a prompt.
        """
        assert step.batch.hidden is None, "CANNOT: HiddenColumns are of the last layer, and go to the host"
        return step.drafts

    def captures(self, batch: ModelWorkerBatch) -> bool:
        return True

    def propose_captured(self, step: RoomyStep, at: TokenPlaces, drafts: Tensor) -> Tensor:
        """Proposes drafts inside a capture."""
        return drafts

    def beside(self, program: Program) -> Program:
        """CANNOT, of a chunk that does not end its prompt: the draft's key of a token is made of the token after it,
        and the batch does not say the first token of the next chunk.
        """
        return program


class Eagle3Worker:
    """`forward.worker.Worker`."""

    tokens_per_step = 1 + DRAFTS
    late_lengths = True
    programs: Mapping[str, str] = {}

    def __init__(self, capacity: WorkerCapacity, verification: Program) -> None:
        self.capacity = capacity
        self._verification = verification

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        return self._verification.run(batch)

    def catch_up(self, *, idle: bool) -> None:
        """All kernels are compiled when it starts."""


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


def worker(capacity: WorkerCapacity, verification: Program) -> Worker:
    """The worker for the scheduler."""
    return Eagle3Worker(capacity, verification)


def drafter(draft: HelpingModel, memory: ModelMemory) -> Drafter:
    """The drafter for the served model's programs."""
    return draft.ready(memory, Beside()).drafter
