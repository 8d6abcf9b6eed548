"""What computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

AttentionBackend = Literal["auto", "cpu", "torch_native", "triton", "flashinfer"]
DecodeAttentionBackend = Literal["auto", "cpu", "torch_native", "triton", "flashinfer", "sgl_kernel"]
SamplingBackend = Literal["auto", "pytorch", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgs:
    """Which kernels compute, and which steps are captured as CUDA graphs."""

    attention_backend: AttentionBackend | None = arg(
        None, help="Attention kernels of all steps; the device's best if unset or auto."
    )
    prefill_attention_backend: AttentionBackend | None = arg(
        None, help="Attention kernels of steps with new prompt tokens, instead of --attention-backend."
    )
    decode_attention_backend: DecodeAttentionBackend | None = arg(
        None, help="Attention kernels of decode steps, instead of --attention-backend."
    )
    sampling_backend: SamplingBackend | None = arg(None, help="Sampling kernels; the device's best if unset or auto.")
    enable_deterministic_inference: bool = arg(
        False,
        help="Give a request the same tokens and log-probabilities, bit for bit, whatever else is computed with it, "
        "found in the cache or cut into chunks; slower.",
    )
    logit_processor: tuple[str, ...] = arg(
        (),
        help="Code of your own that may change the logits of requests which name it: module:Class, callable as "
        "(logits, custom_param_list). The name is that of the class.",
    )
    disable_cascade_attention: bool = arg(
        False, help="Let every decoding row read its whole prefix, also where several rows of a step share it."
    )
    disable_cuda_graph: bool = arg(False, aliases=("disable_decode_cuda_graph",), help="Run decode steps uncaptured.")
    disable_persistent_decode: bool = arg(
        False, help="Run captured decode steps of a few rows layer by layer, not in one kernel."
    )
    enable_return_hidden_states: bool = arg(
        False, help="Let requests ask for hidden states; captured decode steps of a few rows run layer by layer then."
    )
    cuda_graph_max_bs: int | None = arg(
        None,
        at_least=1,
        aliases=("cuda_graph_max_bs_decode",),
        help="Largest captured batch; chosen by GPU memory if unset, 16 on a CPU.",
    )
    cuda_graph_bs: tuple[int, ...] | None = arg(
        None, at_least=1, aliases=("cuda_graph_bs_decode",), help="The batch sizes to capture."
    )
    disable_prefill_cuda_graph: bool = arg(False, help="Run steps with short prompts uncaptured.")
    cuda_graph_max_bs_prefill: int | None = arg(
        None, at_least=1, help="Most prompt tokens of a captured step; by the size of the model's layers if unset."
    )
