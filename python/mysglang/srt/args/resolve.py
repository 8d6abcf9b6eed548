"""Resolve every "auto" that can be decided before a model is loaded.

Pure functions, one for each group, run in the order of ArgGroups: each may read what is resolved of the groups before
its own, and of those after only what the user gave. What depends on the loaded model and on free memory (kernels,
graphs, tokens in the KV cache, requests that run at once) stays None; the scheduler process decides it and reports it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mysglang.srt.args.groups import Groups
from mysglang.srt.args.kernels import KernelArgs
from mysglang.srt.args.model import ModelArgs
from mysglang.srt.args.parallel import ParallelArgs
from mysglang.srt.args.schedule import ScheduleArgs
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.args.speculative import MODEL_DRAFTS, MOST_DRAFTS, SpeculativeArgs
from mysglang.srt.utils.hardware import Hardware

Choice = TypeVar("Choice", bound=str)

EMBEDDED_MODEL = Path(__file__).parents[2] / "assets" / "tiny"
EMBEDDED_MODEL_NAME = "mysglang-tiny"
TINY = "tiny"
"""Name of the embedded model on a command line."""

CPU_CHUNK = 2048
CPU_DECODE_WAIT = 2048
"""A CPU takes as long for a chunk as for many decode steps: a second and more for models of 0.6B."""
CHUNK_BY_GPU_MEMORY = ((20, 2048), (60, 4096), (160, 8192), (float("inf"), 16384))
"""(less than so many GiB, tokens of a prefill chunk)"""


def resolve(groups: Groups, hardware: Hardware, seed: int) -> Groups:
    """Returns `groups` with unset values chosen for `hardware`. `seed` is used if the user gave none."""
    parallel = resolve_parallel(groups.parallel, hardware)
    model = resolve_model(groups.model, seed)
    schedule = resolve_shares(resolve_schedule(groups.schedule, parallel, hardware), groups.serving)
    kernels, speculative = resolve_kernels(groups.kernels), resolve_speculative(groups.speculative)
    serving = resolve_serving(groups.serving, groups.model)
    return replace(
        groups,
        parallel=parallel,
        model=model,
        schedule=schedule,
        kernels=kernels,
        speculative=speculative,
        serving=serving,
    )


def resolve_parallel(args: ParallelArgs, hardware: Hardware) -> ParallelArgs:
    if args.device != "auto":
        return args
    return replace(args, device="cuda" if hardware.num_gpus else "cpu")


def is_embedded(model_path: str | None) -> bool:
    """True if the path names the embedded model: no path does, and so does `tiny` unless a directory has that name."""
    return model_path is None or (model_path == TINY and not os.path.isdir(TINY))


def resolve_model(args: ModelArgs, seed: int) -> ModelArgs:
    model_path = str(EMBEDDED_MODEL) if is_embedded(args.model_path) else args.model_path
    return replace(
        args,
        model_path=model_path,
        tokenizer_path=model_path if args.tokenizer_path is None else path_of(args.tokenizer_path),
        random_seed=seed if args.random_seed is None else args.random_seed,
    )


def path_of(name: str) -> str:
    """Returns the path of the model that a flag or a request names."""
    return str(EMBEDDED_MODEL) if is_embedded(name) else name


def resolve_schedule(args: ScheduleArgs, parallel: ParallelArgs, hardware: Hardware) -> ScheduleArgs:
    if args.decode_wait_tokens is None and parallel.device == "cpu":
        args = replace(args, decode_wait_tokens=CPU_DECODE_WAIT)
    if args.chunked_prefill_size is not None:
        return args
    chunk = CPU_CHUNK
    if parallel.device == "cuda":
        # A GPU that is not there is refused later.
        there = [hardware.gpu_memory[gpu] for gpu in parallel.gpus if gpu < hardware.num_gpus]
        gib = min(there, default=0.0) / parallel.ranks_per_gpu
        chunk = next(chunk for below, chunk in CHUNK_BY_GPU_MEMORY if gib < below)
    return replace(args, chunked_prefill_size=chunk)


def resolve_shares(args: ScheduleArgs, given: ServingArgs) -> ScheduleArgs:
    """Turns on fair shares by API key if there are several keys, so that no client can starve another."""
    if args.fair_share_by is not None or given.key_complaint() is not None or len(set(given.keys())) < 2:
        return args
    return replace(args, fair_share_by="api_key")


def resolve_kernels(args: KernelArgs) -> KernelArgs:
    """Chooses the kernels for the device; None is what users write as "auto".

    Deterministic inference leaves out kernels that compute some steps in another way than others.
    """
    return replace(
        args,
        attention_backend=_open(args.attention_backend),
        prefill_attention_backend=_open(args.prefill_attention_backend),
        decode_attention_backend=_open(args.decode_attention_backend),
        sampling_backend=_open(args.sampling_backend),
        disable_cascade_attention=args.disable_cascade_attention or args.enable_deterministic_inference,
        disable_persistent_decode=args.disable_persistent_decode or args.enable_deterministic_inference,
        disable_prefill_cuda_graph=args.disable_prefill_cuda_graph or args.enable_deterministic_inference,
    )


def _open(choice: Choice | None) -> Choice | None:
    """Returns None for `auto`, other values as they are."""
    return None if choice == "auto" else choice


def resolve_speculative(args: SpeculativeArgs) -> SpeculativeArgs:
    """Returns how many drafts a row tries in a step, and the path of the draft model. Flags that contradict each other
    stay as they are, to be refused.
    """
    if args.speculative_algorithm is None or args.complaint() is not None:
        return args
    if args.speculative_draft_model_path is not None:
        args = replace(args, speculative_draft_model_path=path_of(args.speculative_draft_model_path))
    if args.speculative_algorithm == "NGRAM":
        return replace(args, speculative_num_draft_tokens=args.speculative_num_draft_tokens or 1 + MOST_DRAFTS)
    tokens = args.speculative_num_draft_tokens or 1 + (args.speculative_num_steps or MODEL_DRAFTS)
    return replace(
        args, speculative_num_draft_tokens=tokens, speculative_num_steps=tokens - 1, speculative_eagle_topk=1
    )


def resolve_serving(args: ServingArgs, given: ModelArgs) -> ServingArgs:
    if is_embedded(given.model_path) and args.reasoning_parser is None:
        args = replace(args, reasoning_parser="auto")
    if args.served_model_name is not None:
        return args
    return replace(args, served_model_name=EMBEDDED_MODEL_NAME if is_embedded(given.model_path) else given.model_path)
