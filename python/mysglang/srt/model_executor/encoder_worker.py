"""EncoderWorker: an encoder that makes one vector of each prompt. Prompts come whole, and nothing is kept of them.

The scheduler reckons in pages all the same: a page of this worker is the place of one whole prompt, and no memory
stands behind it. So as many prompts run at once as there are slots, and the tokens of a step are what it limits.
"""

from __future__ import annotations

import numpy as np
import torch

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.encoder_attention import PromptGroups, PromptLayout
from mysglang.srt.layers.pooler import Pooler
from mysglang.srt.model_executor.device_occupation import DeviceOccupation, NoCaptures
from mysglang.srt.model_executor.live_weights import LiveWeights
from mysglang.srt.model_executor.model_runner import weight_bytes
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.pooling_output import queue_vectors
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_columns import Indices, positions_of
from mysglang.srt.model_loader.loader import load_as
from mysglang.srt.models.encoder_model import EncoderBatch, EncoderModel
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.utils.hardware import GIB

SLOTS = 512
"""Prompts that may be in two steps, the one that runs and the next one."""

WARM_UP_TOKENS = 16


class EncoderWorker:
    """Implements `forward.worker.Worker`."""

    tokens_per_step = 1
    host_pages: HostPages = NoHostPages()
    attention_backend = "sdpa"

    def __init__(self, config: RunnerConfig, model_config: ModelConfig, load_config: LoadConfig) -> None:
        """Load the model. Raises ConfigError with what to do."""
        pooling = model_config.pooling
        assert pooling is not None, "an encoder does not generate"
        self._platform = platform = platform_named(config.device)
        dtype = getattr(torch, model_config.dtype)
        self._model = model = load_as(EncoderModel, model_config, load_config, platform.device, dtype)
        self._pooler = Pooler(pooling.mode, normalize=pooling.normalize, head=model.head)
        self._uploader = Uploader(platform)
        self.weights = LiveWeights(model, model_config, load_config, platform)
        self.occupation = DeviceOccupation(self.weights, None, NoCaptures(), platform)
        self.device_name = platform.device_name
        slots = config.max_running_requests or SLOTS
        self.capacity = WorkerCapacity(
            # For each prompt a page, and another one that planning sets aside for what might be generated.
            num_pages=2 * slots + 2,
            page_size=1 << (model_config.context_len - 1).bit_length(),
            num_slots=slots,
            max_context=model_config.context_len,
            vocab_size=model_config.vocab_size,
            memory_usage={"weights": weight_bytes(model) / GIB, "kvcache": 0.0, "graph": 0.0},
        )
        length = min(WARM_UP_TOKENS, model_config.context_len)
        self.forward_batch_generation(padding_prompt(length, 0)).complete()

    @torch.inference_mode()
    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue the step. On CUDA it returns while the device still works; on a CPU when the step is done."""
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
