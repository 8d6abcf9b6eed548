"""EncodingModel: an encoder that makes one vector of each prompt. Prompts come whole, and nothing is kept of them."""

from __future__ import annotations

import numpy as np

from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.encoder_attention import PromptGroups, PromptLayout
from mysglang.srt.layers.pooler import Pooler
from mysglang.srt.model_executor.kv_setup import ModelStores
from mysglang.srt.model_executor.model_launch import ModelLaunch, Setup
from mysglang.srt.model_executor.model_memory import ModelMemory
from mysglang.srt.model_executor.padding import WARM_UP_TOKENS, padding_prompt
from mysglang.srt.model_executor.programs import EAGER, Beside, Load, Runnable
from mysglang.srt.model_executor.step_columns import Indices, positions_of
from mysglang.srt.model_executor.vector_end import queue_vectors
from mysglang.srt.models.encoder_model import EncoderBatch, EncoderModel
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.platforms.upload import Uploader


def encoder(setup: Setup, launch: ModelLaunch) -> Load:
    """Load an encoder. Its attention is torch's, whatever is asked for decoders."""
    return lambda: EncodingModel(setup, launch, setup.load(EncoderModel, launch))


class EncodingModel:
    """Implements `programs.ServedModel`."""

    attention = "sdpa"

    def __init__(self, setup: Setup, launch: ModelLaunch, model: EncoderModel) -> None:
        self.model = model
        self.stores = ModelStores((), launch.dtype)
        self._setup = setup
        self._launch = launch

    def workspace(self, *, max_tokens: int, max_context: int) -> int:
        return 0

    def ready(self, memory: ModelMemory, beside: Beside) -> Runnable:
        pooling = self._launch.config.pooling
        assert pooling is not None, "an encoder does not generate"
        pooler = Pooler(pooling.mode, normalize=pooling.normalize, head=self.model.head)
        length = min(WARM_UP_TOKENS, memory.budget.max_context)
        eager = EncodingProgram(self.model, pooler, self._setup.platform)
        return Runnable(eager, [padding_prompt(length, memory.tables.padding_slot)])


class EncodingProgram:
    """Implements `programs.Program`: all steps, eagerly."""

    name = EAGER
    takes = "every step"

    def __init__(self, model: EncoderModel, pooler: Pooler, platform: Platform) -> None:
        self._model = model
        self._pooler = pooler
        self._platform = platform
        self._uploader = Uploader(platform)

    def covers(self, batch: ModelWorkerBatch) -> bool:
        return True

    def run(self, batch: ModelWorkerBatch) -> BatchResult:
        assert bool(batch.yields.all()) and bool((batch.seq_lens == batch.extend_lens).all()), "prompts come whole"
        lens = batch.extend_lens
        layout = PromptLayout.of(lens.tolist())
        positions = positions_of(batch)
        up = self._uploader.upload(
            {
                "input_ids": batch.input_ids.astype(np.int64),
                "positions": positions,
                "token_types": token_types(batch, positions),
                "lens": lens.astype(np.int64),
                "tokens": layout.tokens,
                "real": layout.real,
                "places": layout.places,
            }
        )
        groups = PromptGroups(layout.groups, up["tokens"], up["real"], up["places"])
        hidden = self._model(EncoderBatch(up["input_ids"], up["positions"], up["token_types"], groups))
        return queue_vectors(batch, self._pooler.rows(hidden, up["lens"]), self._platform)


def token_types(batch: ModelWorkerBatch, positions: Indices) -> Indices:
    """[T] 1 for the tokens of a pair's second text, else 0."""
    if batch.second_texts is None:
        return np.zeros(batch.num_tokens, dtype=np.int64)
    seconds = np.repeat(batch.second_texts, batch.extend_lens)
    types: Indices = (positions >= seconds).astype(np.int64)
    return types
