"""PoolingWorker: a decoder that makes one vector of each prompt. It attends over pages, as one that generates does.

Where only the last token counts, prompts may come in chunks and begin with what others have computed; else the
scheduler sends them whole.
"""

from __future__ import annotations

import torch

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.host_pages import HostPages, NoHostPages
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.layers.attention.factory import AskedBackends, choose_backends, create_attention_backend
from mysglang.srt.layers.pooler import Pooler
from mysglang.srt.model_executor.device_occupation import DeviceOccupation, NoCaptures
from mysglang.srt.model_executor.eager_runner import HiddenStates
from mysglang.srt.model_executor.kv_setup import make_pool, plan_kv
from mysglang.srt.model_executor.live_weights import LiveWeights
from mysglang.srt.model_executor.model_runner import weight_bytes
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.pooling_output import queue_vectors
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_columns import table_columns, token_columns
from mysglang.srt.model_loader.loader import load_as
from mysglang.srt.models.pooling_decoder import PoolingDecoder
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.utils.hardware import GIB

WARM_UP_TOKENS = 16


class PoolingWorker:
    """Implements `forward.worker.Worker`."""

    tokens_per_step = 1
    host_pages: HostPages = NoHostPages()

    def __init__(self, config: RunnerConfig, model_config: ModelConfig, load_config: LoadConfig) -> None:
        """Load the model and take the memory. Raises ConfigError with what to do."""
        pooling = model_config.pooling
        assert pooling is not None, "the model pools"
        self._platform = platform = platform_named(config.device)
        dtype = getattr(torch, model_config.dtype)
        asked = AskedBackends(
            config.attention_backend, config.prefill_attention_backend, config.decode_attention_backend
        )
        choose_backends(asked, platform.attention_backends, [], dtype)
        before = platform.memory()
        model = load_as(PoolingDecoder, model_config, load_config, platform.device, dtype)
        specs = model.attention_specs()
        chosen = choose_backends(asked, platform.attention_backends, specs, dtype)
        budget = plan_kv(
            config,
            platform,
            specs,
            dtype,
            context=model_config.context_len,
            graph_sizes=(),
            before=before,
            attention=chosen,
        )
        pool, self._tables = make_pool(budget, specs, dtype, platform)
        backend = create_attention_backend(chosen, pool, self._tables.pages, specs, self._tables.windows)
        self._hidden = HiddenStates(model, backend, self._tables)
        self._pooler = Pooler(pooling.mode, normalize=pooling.normalize, head=model.head)
        self._whole_prompts = pooling.needs_whole_prompts
        self._uploader = Uploader(platform)
        self.weights = LiveWeights(model, model_config, load_config, platform)
        self.occupation = DeviceOccupation(self.weights, pool, NoCaptures(), platform)
        self.device_name = platform.device_name
        self.attention_backend = str(chosen)
        self.capacity = WorkerCapacity(
            num_pages=budget.num_pages,
            page_size=budget.page_size,
            num_slots=budget.num_slots,
            max_context=budget.max_context,
            windows=budget.windows,
            vocab_size=model_config.vocab_size,
            memory_usage={"weights": weight_bytes(model) / GIB, "kvcache": pool.nbytes / GIB, "graph": 0.0},
        )
        length = min(WARM_UP_TOKENS, budget.max_context)
        self.forward_batch_generation(padding_prompt(length, self._tables.padding_slot)).complete()

    @torch.inference_mode()
    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue the step. On CUDA it returns while the device still works; on a CPU when the step is done."""
        tables = self._tables
        writes = table_columns(batch.table_writes, tables.pages.shape[1], batch.windows)
        columns = {**writes, **token_columns(batch)}
        if self._whole_prompts:
            columns.pop("last_tokens", None)
        up = self._uploader.upload(columns)
        tables.write(up)
        hidden = self._hidden.of(batch, up)
        if not batch.yields.any():
            return queue_vectors(batch, None, self._platform)
        if self._whole_prompts:
            vectors = self._pooler.rows(hidden, up["extend_lens"].long())
        else:
            vectors = self._pooler.tokens(hidden.index_select(0, up["logits_rows"]))
        return queue_vectors(batch, vectors, self._platform)
