"""The options of vLLM that have another name here, or none: what a newcomer types by habit, and what to do instead.

docs/coming_from_vllm.md has the same list; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CODE_NEVER_RUNS = "leave it out, since code that comes with a model never runs here"
_CACHED = "leave it out, since the prefix cache is on by default, and --disable-radix-cache turns it off"
_CHUNKED = "leave it out, since long prompts are cut by default, and --chunked-prefill-size -1 turns that off"
_OVERLAPPED = "leave it out, since this is the default, and --disable-overlap-schedule turns it off"
_NONE = "leave it out, since there is no such thing here"

VLLM_SHORT: Mapping[str, str] = MappingProxyType({"-tp": "--tp-size", "-pp": "--pp-size", "-q": "--quantization"})
"""Short flags of vLLM, and the long ones that they stand for, which are also ours."""

VLLM_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "allowed_origins": "give --cors-allow-origins",
        "api_server_count": "give --tokenizer-worker-num",
        "async_scheduling": _OVERLAPPED,
        "block_size": "give --page-size",
        "compilation_config": _NONE,
        "config_format": _CODE_NEVER_RUNS,
        "convert": "give --is-embedding for embeddings",
        "cudagraph_capture_sizes": "give --cuda-graph-bs",
        "disable_hybrid_kv_cache_manager": "give --disable-hybrid-swa-memory",
        "disable_log_requests": "leave it out, since requests are logged only with --log-requests",
        "disable_log_stats": "leave it out, since --enable-metrics turns /metrics on",
        "enable_auto_tool_choice": "leave it out, since the parser is found from the chat template, or give "
        "--tool-call-parser",
        "enable_chunked_prefill": _CHUNKED,
        "enable_log_requests": "give --log-requests",
        "enable_prefix_caching": _CACHED,
        "enable_prompt_tokens_details": "give --enable-cache-report",
        "enforce_eager": "give --disable-cuda-graph --disable-prefill-cuda-graph",
        "generation_config": "give --sampling-defaults",
        "gpu_memory_utilization": "give --mem-fraction-static, the share for weights and KV cache alone",
        "hf_overrides": "give --json-model-override-args",
        "kv_cache_memory_bytes": "give --max-total-tokens, in tokens",
        "kv_offloading_size": "give --enable-hierarchical-cache --hicache-size",
        "limit_mm_per_prompt": "leave it out, since models take text only",
        "logits_processors": "give --logit-processor",
        "lora_modules": "leave it out, since this version does not support LoRA",
        "max_cudagraph_capture_size": "give --cuda-graph-max-bs",
        "max_model_len": "give --context-length",
        "max_num_batched_tokens": "give --chunked-prefill-size, or --max-prefill-tokens for several prompts together",
        "max_num_seqs": "give --max-running-requests",
        "no_async_scheduling": "give --disable-overlap-schedule",
        "no_enable_chunked_prefill": "give --chunked-prefill-size -1",
        "no_enable_prefix_caching": "give --disable-radix-cache",
        "num_gpu_blocks_override": "give --max-total-tokens, in tokens",
        "root_path": "give --fastapi-root-path",
        "runner": "give --is-embedding for embeddings",
        "scheduling_policy": "give --schedule-policy, and --enable-priority-scheduling for priorities",
        "seed": "give --random-seed",
        "spec_method": "give --speculative-algorithm",
        "speculative_config": "give --speculative-algorithm",
        "structured_outputs_config": "give --grammar-backend",
        "swap_space": _NONE,
        "tokenizer": "give --tokenizer-path",
    }
)
"""Name -> what to do instead."""
