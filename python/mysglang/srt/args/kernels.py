"""Options that choose the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

AttentionBackend = Literal["auto", "cpu", "torch_native", "triton", "flashinfer"]
DecodeAttentionBackend = Literal["auto", "cpu", "torch_native", "triton", "flashinfer", "sgl_kernel"]
SamplingBackend = Literal["auto", "pytorch", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgs:
    """Which kernels compute, and which steps are captured as CUDA graphs. The defaults are the fastest."""

    attention_backend: AttentionBackend | None = arg(
        None, help="Attention kernels of all steps. If unset or auto, the fastest that this device has."
    )
    prefill_attention_backend: AttentionBackend | None = arg(
        None, help="Attention kernels of steps with new prompt tokens, instead of --attention-backend."
    )
    decode_attention_backend: DecodeAttentionBackend | None = arg(
        None, help="Attention kernels of decode steps, instead of --attention-backend."
    )
    sampling_backend: SamplingBackend | None = arg(
        None, help="Kernels that sample tokens. If unset or auto, the fastest that this device has."
    )
    enable_deterministic_inference: bool = arg(
        False,
        help="Give the same request the same tokens and log-probabilities, bit for bit, whatever else is in the "
        "batch or the cache. Slower; docs/deterministic.md has figures.",
    )
    logit_processor: tuple[str, ...] = arg(
        (),
        help="Class of yours that may change the logits of requests that name it, as module:Class. The module must"
        " be importable; docs/generation.md describes the class.",
    )
    disable_cascade_attention: bool = arg(
        False,
        help="Let each row read its whole prefix, even if several rows of a step share it. Slower for shared "
        "prefixes; use it to compare.",
    )
    disable_cuda_graph: bool = arg(
        False,
        aliases=("disable_decode_cuda_graph",),
        help="Run decode steps without captured graphs. Slower; saves memory and start-up time, and helps to debug"
        " kernels.",
    )
    disable_persistent_decode: bool = arg(
        False,
        help="Run decode steps of a few rows layer by layer, instead of in one kernel. Use it to compare or to debug.",
    )
    enable_return_hidden_states: bool = arg(
        False, help="Let requests ask for hidden states. Decode steps of a few rows then run layer by layer."
    )
    cuda_graph_max_bs: int | None = arg(
        None,
        at_least=1,
        aliases=("cuda_graph_max_bs_decode",),
        help="Largest batch of decode steps that is captured. Raise it if the log shows `cuda graph: False`. If "
        "unset, by GPU memory, or 16 on a CPU.",
    )
    cuda_graph_bs: tuple[int, ...] | None = arg(
        None,
        at_least=1,
        aliases=("cuda_graph_bs_decode",),
        help="Batch sizes to capture, instead of the default list. Fewer sizes shorten the start.",
    )
    enable_torch_compile: bool = arg(
        False,
        help="Run decode steps of models with transformers' layers as code of torch.compile. Measure first: on a "
        "CPU captured steps, which these steps replace, are often faster.",
    )
    torch_compile_max_bs: int | None = arg(
        None,
        at_least=1,
        help="Largest batch of decode steps that runs compiled, with --enable-torch-compile. If unset, 32.",
    )
    disable_prefill_cuda_graph: bool = arg(
        False, help="Run steps with short prompts without captured graphs. Use it to compare or to debug."
    )
    cuda_graph_max_bs_prefill: int | None = arg(
        None,
        at_least=1,
        help="Largest number of prompt tokens in a captured prefill step. If unset, it follows from the size of "
        "the model's layers.",
    )
