"""make_worker: ServerArgs -> the worker of one rank. The one place where managers meet the model executor."""

from __future__ import annotations

from dataclasses import replace

from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.ranks import RankContext
from mysglang.srt.errors import ConfigError
from mysglang.srt.managers.model_files import check_task, load_draft_config
from mysglang.srt.model_executor.executor import Executor
from mysglang.srt.model_executor.model_launch import ModelLaunch
from mysglang.srt.model_executor.runner_config import HostTierConfig, RunnerConfig
from mysglang.srt.server_args import ServerArgs

COMPILED_ROWS = 32
"""Rows of the largest compiled decode step, if --torch-compile-max-bs is unset."""


def make_worker(args: ServerArgs, model: ModelConfig, ranks: RankContext) -> Executor:
    """Load the model and size its memory. Raises ConfigError for what the user must change."""
    check_task(args, model)
    if args.kernels.enable_deterministic_inference and model.served_as.foreign:
        raise ConfigError(
            f"--enable-deterministic-inference: {model.architecture} is computed by transformers' code, whose products "
            "depend on what else is in a step; leave it out."
        )
    if args.observability.enable_mfu_metrics and model.served_as.foreign:
        raise ConfigError(
            f"--enable-mfu-metrics: {model.architecture} is computed by transformers' code, and no plan says what a "
            "token costs in its layers; leave it out."
        )
    if args.kernels.enable_torch_compile and not model.served_as.foreign:
        raise ConfigError(
            f"--enable-torch-compile: {model.architecture} is computed by code of mysglang, whose kernels are fused by "
            f"hand; leave it out{_other_code(model)}."
        )
    _check_states(args, model)
    load = LoadConfig(
        load_format=args.model.load_format,
        quantization=args.model.quantization,
        seed=args.model.random_seed or 0,
    )
    launches = [ModelLaunch(model, load)]
    if (draft := args.speculative.speculative_draft_model_path) is not None:
        draft_model = load_draft_config(draft, model)
        draft_load = replace(load, load_format=load.format.beside.name)
        launches.append(ModelLaunch(draft_model, draft_load, helps="drafts"))
    return Executor(_runner_config(args, model, ranks), launches)


def _other_code(model: ModelConfig) -> str:
    """Returns the advice to take transformers' code, for a model that it may compute."""
    if model.pooling is not None or model.decoder is None or model.decoder.has_states:
        return ""
    return ", or give --model-impl transformers"


def _check_states(args: ServerArgs, model: ModelConfig) -> None:
    """Raise ConfigError for options that a model with states for each request does not support."""
    if model.decoder is None or not model.decoder.has_states:
        return
    refused = {
        "--speculative-algorithm": bool(args.speculative.drafts),
        "--enable-hierarchical-cache": args.hicache.enable_hierarchical_cache,
        "--enable-deterministic-inference": args.kernels.enable_deterministic_inference,
        # A jump takes the answer up again from the last checkpoint, and answers leave none.
        "--enable-jump-forward": args.grammar.enable_jump_forward,
    }
    for flag, given in refused.items():
        if given:
            raise ConfigError(
                f"{flag} does not go together with layers that keep a state for each request, which "
                f"{model.architecture} has; leave it out."
            )


def _host_tier(args: ServerArgs) -> HostTierConfig | None:
    hicache = args.hicache
    if not hicache.enable_hierarchical_cache:
        return None
    return HostTierConfig(
        ratio=hicache.hicache_ratio,
        size_gb=hicache.hicache_size,
        memory_fraction=hicache.hicache_host_memory_fraction,
        io_backend=hicache.hicache_io_backend,
        mem_layout=hicache.hicache_mem_layout,
    )


def _runner_config(args: ServerArgs, model: ModelConfig, ranks: RankContext) -> RunnerConfig:
    memory, schedule, kernels = args.memory, args.schedule, args.kernels
    return RunnerConfig(
        ranks=ranks,
        device=ranks.device,
        page_size=memory.page_size,
        kv_cache_dtype=memory.kv_cache_dtype,
        quantization_param_path=memory.quantization_param_path,
        mem_fraction_static=memory.mem_fraction_static,
        max_total_tokens=memory.max_total_tokens,
        disable_hybrid_swa_memory=memory.disable_hybrid_swa_memory,
        swa_full_tokens_ratio=memory.swa_full_tokens_ratio,
        max_mamba_cache_size=memory.max_mamba_cache_size,
        mamba_full_memory_ratio=memory.mamba_full_memory_ratio,
        mamba_track_interval=memory.mamba_track_interval,
        mamba_ssm_dtype=memory.mamba_ssm_dtype,
        host_tier=_host_tier(args),
        max_running_requests=schedule.max_running_requests,
        chunked_prefill_size=None if model.needs_whole_prompts else schedule.prefill_chunk,
        max_prefill_tokens=schedule.max_prefill_tokens,
        draft_tokens=args.speculative.drafts,
        attention_backend=kernels.attention_backend,
        prefill_attention_backend=kernels.prefill_attention_backend,
        decode_attention_backend=kernels.decode_attention_backend,
        numerics="invariant" if kernels.enable_deterministic_inference else "fastest",
        sampling_backend=kernels.sampling_backend,
        logit_processors=kernels.logit_processor,
        disable_cuda_graph=kernels.disable_cuda_graph,
        disable_persistent_decode=kernels.disable_persistent_decode,
        enable_return_hidden_states=kernels.enable_return_hidden_states,
        cuda_graph_max_bs=kernels.cuda_graph_max_bs,
        cuda_graph_bs=kernels.cuda_graph_bs,
        disable_prefill_cuda_graph=kernels.disable_prefill_cuda_graph,
        cuda_graph_max_bs_prefill=kernels.cuda_graph_max_bs_prefill,
        torch_compile_max_bs=(kernels.torch_compile_max_bs or COMPILED_ROWS) if kernels.enable_torch_compile else 0,
    )
