"""Each rule catches what it is for, names its flag, and lets sound options pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware

CPU = Hardware()
GPU = Hardware(gpu_memory=(80.0,))
NGRAM, STANDALONE = {"speculative_algorithm": "NGRAM"}, {"speculative_algorithm": "STANDALONE"}
DRAFT = {**STANDALONE, "speculative_draft_model_path": "owner/name"}


@pytest.mark.parametrize("hardware", [CPU, GPU])
def test_sound_options_pass(tmp_path: Path, hardware: Hardware) -> None:
    ServerArgs.from_kwargs(hardware, model_path=str(tmp_path), page_size=16, chunked_prefill_size=16)


@pytest.mark.parametrize("name", ["auto", "none", "qwen3", "<plan>...</plan>", None])
def test_thoughts_of_a_known_form(tmp_path: Path, name: str | None) -> None:
    assert ServerArgs.from_kwargs(CPU, model_path=str(tmp_path), reasoning_parser=name).serving.reasoning_parser == name


def test_a_repository_may_be_fetched_later() -> None:
    ServerArgs.from_kwargs(CPU, model_path="owner/name")


@pytest.mark.parametrize(
    ("hardware", "options", "says"),
    [
        (
            CPU,
            {**DRAFT, "pp_size": 2},
            "--pp-size 2: not together with --speculative-algorithm STANDALONE, whose draft model no single stage",
        ),
        (
            CPU,
            {"tp_size": 2, "pp_size": 2, "enable_deterministic_inference": True},
            "--tp-size 2 --pp-size 2: not together with --enable-deterministic-inference, which",
        ),
        (CPU, {"device": "cuda"}, "--device cuda: no NVIDIA GPU 0 is visible"),
        (GPU, {"base_gpu_id": 3}, "no NVIDIA GPU 3 is visible"),
        (GPU, {"pp_size": 4}, "no NVIDIA GPU 3 is visible"),
        (CPU, {"model_path": "/nowhere/at/all"}, "--model-path /nowhere/at/all: there is no such directory"),
        (
            CPU,
            {"model_path": "/nowhere/x.gguf"},
            "--model-path /nowhere/x.gguf: there is no such file; give the path of",
        ),
        (CPU, {"model_path": "./x.gguf"}, "--model-path ./x.gguf: there is no such file; "),
        (CPU, {"model_path": "./nowhere"}, "--model-path ./nowhere: there is no such directory"),
        (CPU, {"model_path": __file__}, "this is a file; give the directory"),
        (CPU, {"tokenizer_path": "/nowhere"}, "--tokenizer-path /nowhere: there is no such directory"),
        (CPU, {"json_model_override_args": "[1]"}, "--json-model-override-args must be a JSON object"),
        (CPU, {"json_model_override_args": "{"}, "--json-model-override-args must be a JSON object"),
        (CPU, {"chat_template": "no/such.jinja"}, "--chat-template no/such.jinja: there is no such file"),
        (
            CPU,
            {"reasoning_parser": "qwen9"},
            "--reasoning-parser qwen9: give one of auto, none, apertus2509, cohere_command4, deepseek-r1",
        ),
        (CPU, {"reasoning_parser": "<a>..."}, "or two tags as <start>...<end>"),
        (CPU, {"tool_call_parser": "qwen9"}, "--tool-call-parser must be one of auto, none"),
        (CPU, {"chunked_prefill_size": 0}, "--chunked-prefill-size 0"),
        (CPU, {"chunked_prefill_size": -1, "enable_mixed_chunk": True}, "which leaves no chunks to mix"),
        (CPU, {"grammar_backend": "none", "enable_jump_forward": True}, "which leaves no grammar to follow"),
        (CPU, {"radix_eviction_policy": "priority"}, "--radix-eviction-policy priority needs"),
        (CPU, {"radix_eviction_policy": "lfu", "disable_radix_cache": True}, "which leaves nothing to evict"),
        (CPU, {"chunked_prefill_size": 8, "page_size": 16}, "--chunked-prefill-size must be at least --page-size (16)"),
        (CPU, {"schedule_conservativeness": 0.0}, "--schedule-conservativeness must be at least 0.001"),
        (CPU, {"page_size": 3}, "--page-size 3: give a power of two"),
        (CPU, {"crash_dump_contents": True}, "--crash-dump-contents needs --crash-dump-folder."),
        (CPU, {"torch_compile_max_bs": 8}, "--torch-compile-max-bs needs --enable-torch-compile."),
        (CPU, {"crash_dump_folder": "/x", "tokenizer_worker_num": 2}, "--crash-dump-folder needs"),
        (CPU, {"max_prefill_tokens": 8, "page_size": 16}, "--max-prefill-tokens must be at least --page-size (16)"),
        (CPU, {"swa_full_tokens_ratio": 0.5, "disable_hybrid_swa_memory": True}, "leaves one pool"),
        (CPU, {"swa_full_tokens_ratio": 1.5}, "--swa-full-tokens-ratio must be between 0.001 and 1"),
        (
            CPU,
            {"kv_cache_dtype": "fp4_e2m1"},
            "--kv-cache-dtype must be one of auto, bf16, bfloat16, fp8_e4m3, fp8_e5m2",
        ),
        (
            CPU,
            {"quantization_param_path": "/no/such.json"},
            "--quantization-param-path /no/such.json: there is no such",
        ),
        (
            CPU,
            {"quantization_param_path": __file__, "kv_cache_dtype": "fp8_e5m2"},
            "--quantization-param-path: its scales are not for --kv-cache-dtype fp8_e5m2",
        ),
        (CPU, {"max_total_tokens": 31, "page_size": 16}, "--max-total-tokens must be at least two pages (32)"),
        (CPU, {"speculative_num_draft_tokens": 3}, "--speculative-num-draft-tokens: only with --speculative-algorithm"),
        (CPU, {**NGRAM, "speculative_draft_model_path": "a/b"}, "--speculative-draft-model-path: only with"),
        (CPU, {**NGRAM, "speculative_eagle_topk": 1}, "--speculative-eagle-topk: only with"),
        (CPU, STANDALONE, "give the model with --speculative-draft-model-path"),
        (CPU, {**DRAFT, "speculative_eagle_topk": 4}, "--speculative-eagle-topk 4: only chains"),
        (CPU, {**DRAFT, "speculative_num_steps": 2, "speculative_num_draft_tokens": 4}, "--speculative-num-steps 2"),
        (CPU, {**DRAFT, "speculative_num_steps": 5}, "--speculative-num-steps must be between 1 and 4"),
        (CPU, {**DRAFT, "speculative_draft_model": "/nowhere"}, "--speculative-draft-model-path /nowhere: there is no"),
        (
            CPU,
            {**NGRAM, "is_embedding": True},
            "--is-embedding: --speculative-algorithm: only for models that generate",
        ),
        (CPU, {"enable_hicache": True, "is_embedding": True}, "--is-embedding: --enable-hierarchical-cache: only for"),
        (CPU, {**DRAFT, "enable_hierarchical_cache": True}, "not with --speculative-algorithm STANDALONE"),
    ],
)
def test_refuses(tmp_path: Path, hardware: Hardware, options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerArgs.from_kwargs(hardware, **{"model_path": str(tmp_path)} | options)
    assert says in str(caught.value)


def test_all_broken_rules_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerArgs.from_kwargs(CPU, model_path="/nowhere", chunked_prefill_size=0, page_size=6)
    assert len(caught.value.problems) == 3
