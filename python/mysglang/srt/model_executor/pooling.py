"""PoolingModel: a decoder that makes one vector of each prompt. It attends over pages, as one that generates does.

Where only the last token counts, prompts may come in chunks and begin with what others have computed; else the
scheduler sends them whole.
"""

from __future__ import annotations

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.factory import create_attention_backend, workspace_bytes
from mysglang.srt.layers.pooler import Pooler
from mysglang.srt.model_executor.hidden_states import HiddenStates
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.padding import WARM_UP_TOKENS, padding_prompt
from mysglang.srt.model_executor.programs import EAGER, Beside, Load, Runnable
from mysglang.srt.model_executor.vector_end import queue_vectors
from mysglang.srt.models.pooling_decoder import PoolingDecoder
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.platforms.upload import Uploader


def pooling_decoder(setup: Setup, launch: ModelLaunch) -> Load:
    """A decoder that makes vectors. Raises ConfigError for what cannot run here."""
    return lambda: PoolingModel(setup, launch, setup.load(PoolingDecoder, launch))


class PoolingModel:
    """Implements `programs.ServedModel`."""

    def __init__(self, setup: Setup, launch: ModelLaunch, model: PoolingDecoder) -> None:
        self.model = model
        self.stores = setup.stores(launch, model.attention_specs(), model.state_specs())
        self._setup = setup
        self._launch = launch
        self._chosen = setup.choose_attention(self.stores, launch.dtype)

    @property
    def attention(self) -> str:
        return str(self._chosen)

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        specs = self.stores.specs
        attention = workspace_bytes(self._chosen, specs, max_tokens=max_tokens, max_context=max_context)
        return attention + self.model.workspace(max_tokens)

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        pooling, tables = self._launch.config.pooling, memory.tables
        assert pooling is not None, "the model pools"
        uploader = Uploader(self._setup.platform)
        backend = create_attention_backend(self._chosen, memory.pool, tables.pages, self.stores.specs)
        eager = PoolingProgram(
            HiddenStates(self.model, backend, self._setup.step_buffers(memory), uploader, memory.state_steps(uploader)),
            Pooler(pooling.mode, normalize=pooling.normalize, head=self.model.head),
            self._setup.platform,
            whole_prompts=pooling.needs_whole_prompts,
        )
        length = min(WARM_UP_TOKENS, memory.budget.max_context)
        states = memory.states is not None
        return Runnable(eager, [padding_prompt(length, tables.padding_slot, spaces=tables.num_spaces, states=states)])


class PoolingProgram:
    """Implements `programs.Program`: all steps, eagerly."""

    name = EAGER
    takes = "every step"

    def __init__(self, hidden: HiddenStates, pooler: Pooler, platform: Platform, *, whole_prompts: bool) -> None:
        self._hidden = hidden
        self._pooler = pooler
        self._platform = platform
        self._whole_prompts = whole_prompts

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        hidden, columns = self._hidden.of(batch, all_tokens=self._whole_prompts)
        if not batch.yields.any():
            return queue_vectors(batch, None, self._platform)
        if self._whole_prompts:
            vectors = self._pooler.rows(hidden, columns["extend_lens"].long())
        else:
            vectors = self._pooler.tokens(hidden.index_select(0, columns["logits_rows"]))
        return queue_vectors(batch, vectors, self._platform)
