"""ModelRunner: owns the model, its memory and the way steps are run. Queues a whole step and waits for nothing.

    upload one buffer -> page table writes -> forward (eager, or a replayed graph) -> sample -> remember newest tokens

Everything of a step is queued on one stream, so steps take effect in the order in which they come.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.outputs import BatchResult
from mysglang.srt.forward.worker_batch import ModelWorkerBatch, TokenMask
from mysglang.srt.kernels.ahead import compile_ahead
from mysglang.srt.kernels.op import use_ops
from mysglang.srt.layers.attention.factory import AskedBackends, choose_backends, create_attention_backend
from mysglang.srt.layers.attention.graph import GraphAttentionBackend, PromptGraphBackend
from mysglang.srt.layers.logits_processor import LogitsProcessor
from mysglang.srt.layers.sampler import Sampler, SamplingOps
from mysglang.srt.layers.sampling_step import Sampled
from mysglang.srt.model_executor.decode_graph_runner import DecodeGraphRunner, StepGraphs
from mysglang.srt.model_executor.device_occupation import DeviceOccupation
from mysglang.srt.model_executor.eager_runner import EagerRunner, ForwardOutput
from mysglang.srt.model_executor.feature_stager import FeatureStager
from mysglang.srt.model_executor.graph_sizes import graph_sizes, prompt_sizes
from mysglang.srt.model_executor.kv_setup import make_host_pages, make_pool, plan_kv
from mysglang.srt.model_executor.live_weights import LiveWeights
from mysglang.srt.model_executor.padding import padding_prompt
from mysglang.srt.model_executor.prompt_graph_runner import PromptGraphRunner, PromptGraphs
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.model_executor.step_columns import sampled_columns, table_columns, token_columns
from mysglang.srt.model_executor.step_inputs import StepInputs, StepStager
from mysglang.srt.model_executor.step_output import StepReturns
from mysglang.srt.model_executor.step_program import programs_of
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.platforms import platform_named
from mysglang.srt.platforms.interface import CannotCapture, Platform
from mysglang.srt.platforms.upload import Uploader
from mysglang.srt.sampling.feature import DeviceFacts
from mysglang.srt.sampling.logit_processors import load_processors
from mysglang.srt.sampling.sampling_params import TOP_K_ALL
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.logging import measured

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 16
WARM_UP_TOP_K = (1, 2, TOP_K_ALL)
"""Greedy, filtered, drawn from all."""


class ModelRunner:
    """One rank's model, ready to run steps."""

    def __init__(self, config: RunnerConfig, model_config: ModelConfig, load_config: LoadConfig) -> None:
        """Load, size, allocate, capture. Raises ConfigError where the launch's values and this machine do not fit."""
        self.platform = platform = platform_named(config.device)
        device, dtype = platform.device, getattr(torch, model_config.dtype)
        attentions = attention_backends(config, platform)
        use_ops(config.numerics)
        compile_ahead(platform.name, head_dim=model_config.plan.layers[0].attention.head_dim, dtype=dtype)
        sizes = graph_sizes(config, platform)
        # What cannot run here is refused before weights are read; what cannot run with this model, after that.
        processors = load_processors(config.logit_processors)
        ops = SamplingOps.choose(reference=wants_reference(config.sampling_backend, platform))
        asked = AskedBackends(
            config.attention_backend, config.prefill_attention_backend, config.decode_attention_backend
        )
        choose_backends(asked, attentions, [], dtype)
        before = platform.memory()
        self.startup_times: dict[str, float] = {}
        """Seconds by phase."""
        with measured(self.startup_times, "load_weight"):
            model = load_model(model_config, load_config, device, dtype)
        self.weights = LiveWeights(model, model_config, load_config, platform, self._weights_changed)
        features = FeatureStager(DeviceFacts(model_config.vocab_size, device, ops.draw))
        self._stager = StepStager(Uploader(platform), features, ops, processors)
        self._sampler = Sampler(ops)
        self._warm_sampler(model_config.vocab_size, dtype)
        specs = model.attention_specs()
        chosen = choose_backends(asked, attentions, specs, dtype)
        self.attention_backend = str(chosen)
        self.budget = plan_kv(
            config,
            platform,
            specs,
            dtype,
            context=model_config.context_len,
            graph_sizes=sizes,
            before=before,
            attention=chosen,
        )
        with measured(self.startup_times, "kv_cache_allocation"):
            pool, self._tables = make_pool(self.budget, specs, dtype, platform)
            self.host_pages = make_host_pages(config.host_tier, pool, platform)
        self._arrivals = pool.arrivals
        self._returns = StepReturns(platform, self._tables.padding_slot)
        backend = create_attention_backend(chosen, pool, self._tables.pages, specs, self._tables.windows)
        self._logits = logits = LogitsProcessor(model.compute_logits, model_config.vocab_size)
        self._eager = EagerRunner(model, logits, backend, self._tables)
        layer_weights = weight_bytes(model) // dtype.itemsize // len(specs)
        prompts = prompt_sizes(config, platform, self.budget.max_context, layer_weights)
        tables = self._tables

        def capture() -> tuple[StepGraphs, PromptGraphs]:
            steps, prompt_steps = StepGraphs(), PromptGraphs()
            if sizes and isinstance(backend, GraphAttentionBackend):
                hidden = config.enable_return_hidden_states
                persistent = not (config.disable_persistent_decode or hidden or tables.windows)
                programs = programs_of(model, logits, backend, pool, tables.pages, persistent=persistent)
                try:
                    with measured(self.startup_times, "cuda_graph_decode"):
                        steps = DecodeGraphRunner(sizes, programs, tables, platform, keep_hidden=hidden)
                except CannotCapture as error:
                    logger.warning("Decode steps are not captured: %s.", error)
            taken = backend.prompt_capture(specs) if isinstance(backend, PromptGraphBackend) else None
            if prompts and taken is not None:
                with measured(self.startup_times, "cuda_graph_prefill"):
                    prompt_steps = PromptGraphRunner(prompts, model, backend, taken, tables, platform)
            return steps, prompt_steps

        self._capture = capture
        self._weight_addresses = partial(addresses, model)
        self._captured_over: tuple[int, ...] | None = None
        self.restore()
        self.occupation = DeviceOccupation(self.weights, pool, self, platform)
        self.memory_usage = {
            "weights": weight_bytes(model) / GIB,
            "kvcache": pool.nbytes / GIB,
            "graph": (self._graphs.nbytes + self._prompts.nbytes) / GIB,
        }
        self._warm_up()

    @torch.inference_mode()
    def launch(self, batch: ModelWorkerBatch) -> BatchResult:
        """Queue the step."""
        on_graph = self._graphs.covers(batch)
        if not on_graph and not self._prompts.covers(batch):
            return self._run_eagerly(batch)
        self._arrivals.wait_for_all()
        result = self._replay(batch) if on_graph else self._replay_prompts(batch)
        result.on_graph = True
        return result

    def drop(self) -> None:
        """Forget the graphs, and with them every address; no step may be launched until `restore`."""
        self._graphs, self._prompts, self._captured_over = StepGraphs(), PromptGraphs(), None
        gc.collect()  # a graph that sits in a cycle would keep its memory

    def restore(self) -> None:
        """Capture them again."""
        self._graphs, self._prompts = self._capture()
        self._captured_over = self._weight_addresses()

    def _weights_changed(self) -> None:
        """Capture again if graphs know weights where they are no more."""
        if self._captured_over is not None and self._captured_over != self._weight_addresses():
            self.drop()
            self.restore()

    @torch.inference_mode()
    def _warm_sampler(self, vocab_size: int, dtype: torch.dtype) -> None:
        """Choose tokens once in each way: its kernels are compiled while others still are in the background."""
        logits = torch.zeros(1, vocab_size, dtype=dtype, device=self.platform.device)
        for top_k in WARM_UP_TOP_K:
            batch = padding_prompt(1, 0, top_k=top_k)
            self._sampler.sample(logits, self._stager.stage(batch, token_columns(batch)).sampling)

    def _warm_up(self) -> None:
        """Run what is compiled at first use, so that no request waits for it and what cannot be built is found here."""
        length = min(WARM_UP_TOKENS, self.budget.max_context)
        for top_k in WARM_UP_TOP_K:
            self.launch(padding_prompt(length, self._tables.padding_slot, top_k=top_k)).complete()
        with torch.inference_mode():
            self._run_eagerly(padding_prompt(length, self._tables.padding_slot)).complete()

    def _replay(self, batch: ModelWorkerBatch) -> BatchResult:
        inputs = self._stager.stage(batch, {})
        replayed = self._graphs.run(batch)
        if inputs.sampling.plain_greedy and not batch.waits_for_mask:
            return self._returns.queue(batch, inputs, Sampled(replayed.tokens), None, replayed.hidden)
        return self._choose(batch, inputs, replayed.slots, ForwardOutput(replayed.logits, hidden=replayed.hidden))

    def _replay_prompts(self, batch: ModelWorkerBatch) -> BatchResult:
        hidden = self._prompts.run(batch)
        # The device is at work from here on.
        inputs = self._stager.stage(batch, sampled_columns(batch))
        up = inputs.tokens
        logits = self._logits.next_token_logits(hidden, up["logits_rows"]) if batch.yields.any() else None
        return self._choose(batch, inputs, up["sample_slots"], ForwardOutput(logits))

    def _run_eagerly(self, batch: ModelWorkerBatch) -> BatchResult:
        tables = self._tables
        writes = table_columns(batch.table_writes, tables.pages.shape[1], batch.windows)
        inputs = self._stager.stage(batch, {**writes, **token_columns(batch)})
        up = inputs.tokens
        tables.write(up)
        output = self._eager.run(batch, up, inputs.prompt)
        return self._choose(batch, inputs, up["slots"] if batch.mode.is_decode else up["sample_slots"], output)

    def _choose(self, batch: ModelWorkerBatch, inputs: StepInputs, slots: Tensor, output: ForwardOutput) -> BatchResult:
        """Choose the tokens of `slots`, those rows that yield: now, or when the mask is there that they wait for."""

        @torch.inference_mode()
        def choose(mask: TokenMask | None) -> BatchResult:
            sampled = Sampled(slots[:0])
            if output.logits is not None:
                step = inputs.sampling
                if mask is not None:
                    step = step.then(self._stager.stage_late(batch, mask))
                sampled = self._sampler.sample(output.logits, step)
                self._tables.record(slots, sampled.tokens)
            return self._returns.queue(batch, inputs, sampled, output.prompt_logprobs, output.hidden)

        return BatchResult.waiting(choose) if batch.waits_for_mask else choose(None)


def attention_backends(config: RunnerConfig, platform: Platform) -> tuple[str, ...]:
    """Those that may be chosen from. Raises ConfigError where kernels are asked for by name that are not invariant."""
    if config.numerics == "fastest":
        return platform.attention_backends
    asked = {
        "attention-backend": config.attention_backend,
        "prefill-attention-backend": config.prefill_attention_backend,
        "decode-attention-backend": config.decode_attention_backend,
        "sampling-backend": config.sampling_backend,
    }
    given = [f"--{flag} {name}" for flag, name in asked.items() if name not in (None, "auto")]
    if given:
        raise ConfigError(f"--enable-deterministic-inference has kernels of its own: leave out {', '.join(given)}.")
    logger.info(
        "Deterministic: attention %s, products of fixed tiles, no cascade, no whole-step kernel, no captured prompts.",
        ", ".join(platform.invariant_attention_backends),
    )
    return platform.invariant_attention_backends


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
    return sum({id(tensor): tensor.nbytes for tensor in weights_of(model)}.values())


def addresses(model: nn.Module) -> tuple[int, ...]:
    """Where these are; oneDNN's packed ones have no memory to be asked for."""
    tensors = weights_of(model)
    return tuple(tensor.data_ptr() if tensor.layout is torch.strided else id(tensor) for tensor in tensors)


def weights_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters and what is kept of them in another form, some more than once."""
    for module in model.modules():
        yield from module.parameters(recurse=False)
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))
