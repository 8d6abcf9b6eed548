"""TpModelWorker: the plain worker of one tensor-parallel rank. One token for each row that yields, in every step."""

from __future__ import annotations

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker import WorkerCapacity
from mysglang.srt.forward.worker_batch import ModelWorkerBatch
from mysglang.srt.model_executor.model_runner import ModelRunner
from mysglang.srt.model_executor.runner_config import RunnerConfig


class TpModelWorker:
    """Implements `forward.worker.Worker`."""

    tokens_per_step = 1

    def __init__(self, config: RunnerConfig, model_config: ModelConfig, load_config: LoadConfig) -> None:
        """Load the model and take the memory. Raises ConfigError with what to do."""
        self._runner = ModelRunner(config, model_config, load_config)
        budget = self._runner.budget
        self.capacity = WorkerCapacity(
            num_pages=budget.num_pages,
            page_size=budget.page_size,
            num_slots=budget.num_slots,
            max_context=budget.max_context,
            windows=budget.windows,
            vocab_size=model_config.vocab_size,
            memory_usage=self._runner.memory_usage,
            startup_times=self._runner.startup_times,
        )
        self.weights = self._runner.weights
        self.occupation = self._runner.occupation
        self.host_pages = self._runner.host_pages
        self.device_name = self._runner.platform.device_name
        self.attention_backend = self._runner.attention_backend

    def forward_batch_generation(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue the step. On CUDA it returns while the device still works; on a CPU when the step is done."""
        return self._runner.launch(batch)
