"""ModelRunner: owns the model, its memory and the way steps are run. Queues a whole step and waits for nothing.

    upload one buffer -> page table writes -> forward (eager, or a replayed graph) -> sample -> remember newest tokens

Everything of a step is queued on one stream, so steps take effect in the order in which they come.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch, TokenMask
from mysglang.srt.kernels.ahead import compile_ahead
from mysglang.srt.layers.attention.factory import AskedBackends, choose_backends, create_attention_backend
from mysglang.srt.layers.attention.graph import GraphAttentionBackend, PromptGraphBackend
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.layers.sampler import Sampled, Sampler
from mysglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner, StepGraphs
from mysglang.srt.model_executor.eager_runner import EagerRunner, ForwardOutput
from mysglang.srt.model_executor.graph_sizes import graph_sizes, prompt_sizes
from mysglang.srt.model_executor.kv_setup import make_pool, plan_kv
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.prompt_graph_runner import PromptGraphRunner, PromptGraphs
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_columns import sampled_columns, table_columns, token_columns
from mysglang.srt.model_executor.step_inputs import StepInputs, StepStager
from mysglang.srt.model_executor.step_output import StepReturns
from mysglang.srt.model_executor.step_program import programs_of
from mysglang.srt.model_executor.upload import Uploader
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import Platform
from mysglang.srt.sampling.penalties import PenaltyTable
from mysglang.srt.sampling.sampling_params import TOP_K_ALL
from mysglang.srt.utils.hardware import GIB

WARM_UP_TOKENS = 16


class ModelRunner:
    """One rank's model, ready to run steps."""

    def __init__(self, config: RunnerConfig, model_config: ModelConfig, load_config: LoadConfig) -> None:
        """Load, size, allocate, capture. Raises ConfigError where the launch's values and this machine do not fit."""
        self.platform = platform = platform_named(config.device)
        compile_ahead(platform.name)
        device, dtype = platform.device, getattr(torch, model_config.dtype)
        sizes = graph_sizes(config, platform)
        # What cannot run here is refused before weights are read; what cannot run with this model, after that.
        reference = wants_reference(config.sampling_backend, platform)
        asked = AskedBackends(
            config.attention_backend, config.prefill_attention_backend, config.decode_attention_backend
        )
        choose_backends(asked, platform.attention_backends, [], dtype)
        before = platform.memory()
        model = load_model(model_config, load_config, device, dtype)
        specs = model.attention_specs()
        chosen = choose_backends(asked, platform.attention_backends, specs, dtype)
        self.attention_backend = str(chosen)
        self.budget = plan_kv(
            config, platform, specs, dtype, context=model_config.context_len, graph_sizes=sizes, before=before
        )
        pool, self._tables = make_pool(self.budget, specs, dtype, platform)
        penalties = PenaltyTable(model_config.vocab_size, device)
        self._stager = StepStager(Uploader(platform), penalties)
        self._returns = StepReturns(platform, self._tables.padding_slot)
        self._sampler = Sampler(penalties, reference=reference)
        backend = create_attention_backend(chosen, pool, self._tables.pages, specs)
        self._logits = logits = LogitsProcessor(model.compute_logits, model_config.vocab_size)
        self._eager = EagerRunner(model, logits, backend, self._tables)
        self._graphs = StepGraphs()
        if sizes and isinstance(backend, GraphAttentionBackend):
            persistent = not config.disable_persistent_decode
            programs = programs_of(model, logits, backend, pool, self._tables.pages, persistent=persistent)
            self._graphs = CudaGraphRunner(sizes, programs, self._tables, platform)
        self._prompts = PromptGraphs()
        layer_weights = weight_bytes(model) // dtype.itemsize // len(specs)
        prompts = prompt_sizes(config, platform, self.budget.max_context, layer_weights)
        capture = backend.prompt_capture(specs) if isinstance(backend, PromptGraphBackend) else None
        if prompts and capture is not None:
            self._prompts = PromptGraphRunner(prompts, model, backend, capture, self._tables, platform)
        self.memory_usage = {
            "weights": weight_bytes(model) / GIB,
            "kvcache": pool.nbytes / GIB,
            "graph": (self._graphs.nbytes + self._prompts.nbytes) / GIB,
        }
        self._warm_up()

    @torch.inference_mode()
    def launch(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue the step."""
        if self._graphs.covers(batch):
            return self._replay(batch)
        return self._replay_prompts(batch) if self._prompts.covers(batch) else self._run_eagerly(batch)

    def _warm_up(self) -> None:
        """Run what is compiled at first use, so that no request waits for it and what cannot be built is found here."""
        length = min(WARM_UP_TOKENS, self.budget.max_context)
        for top_k in (1, 2, TOP_K_ALL):
            self.launch(padding_prompt(length, self._tables.padding_slot, top_k=top_k)).complete()
        with torch.inference_mode():
            self._run_eagerly(padding_prompt(length, self._tables.padding_slot)).complete()

    def _replay(self, batch: ModelWorkerBatch) -> BatchResult:
        inputs = self._stager.stage(batch, {})
        replayed = self._graphs.run(batch)
        if inputs.sampling.plain_greedy and not batch.waits_for_mask:
            return self._returns.queue(batch, inputs, Sampled(replayed.tokens), None)
        return self._choose(batch, inputs, replayed.slots, ForwardOutput(replayed.logits))

    def _replay_prompts(self, batch: ModelWorkerBatch) -> BatchResult:
        hidden = self._prompts.run(batch)
        # The device is at work from here on.
        inputs = self._stager.stage(batch, sampled_columns(batch))
        up = inputs.tokens
        logits = self._logits.next_token_logits(hidden, up["logits_rows"]) if batch.yields.any() else None
        return self._choose(batch, inputs, up["sample_slots"], ForwardOutput(logits))

    def _run_eagerly(self, batch: ModelWorkerBatch) -> BatchResult:
        tables = self._tables
        columns = {**table_columns(batch.table_writes, tables.pages.shape[1]), **token_columns(batch)}
        inputs = self._stager.stage(batch, columns)
        up = inputs.tokens
        if "table_entries" in up:
            tables.write_pages(up["table_entries"], up["table_pages"])
        output = self._eager.run(batch, up, inputs.prompt)
        return self._choose(batch, inputs, up["slots"] if batch.mode.is_decode else up["sample_slots"], output)

    def _choose(self, batch: ModelWorkerBatch, inputs: StepInputs, slots: Tensor, output: ForwardOutput) -> BatchResult:
        """Choose the tokens of `slots`, those rows that yield: now, or when the mask is there that they wait for."""

        @torch.inference_mode()
        def choose(mask: TokenMask | None) -> BatchResult:
            sampled = Sampled(slots[:0])
            if output.logits is not None:
                bits = None if mask is None else self._stager.stage_mask(batch, mask)
                sampled = self._sampler.sample(output.logits, replace(inputs.sampling, mask=bits))
                self._tables.record(slots, sampled.tokens)
            return self._returns.queue(batch, inputs, sampled, output.prompt_logprobs)

        return BatchResult.waiting(choose) if batch.waits_for_mask else choose(None)


def wants_reference(sampling_backend: str | None, platform: Platform) -> bool:
    """Whether tokens are chosen in plain torch. Raises ConfigError for a sampling backend that does not run here."""
    if sampling_backend in (None, "auto"):
        return False
    if sampling_backend not in platform.sampling_backends:
        choices = ", ".join(platform.sampling_backends)
        raise ConfigError(f"--sampling-backend {sampling_backend} does not run here. Choose one of {choices}.")
    return sampling_backend == "pytorch"


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the parameters, and of what some of them were laid out as for faster products."""
    tensors = {
        id(tensor): tensor
        for module in model.modules()
        for tensor in (*module.parameters(recurse=False), *vars(module).values())
        if isinstance(tensor, Tensor)
    }
    return sum(tensor.nbytes for tensor in tensors.values())
