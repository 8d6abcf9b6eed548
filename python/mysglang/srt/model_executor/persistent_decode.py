"""Decode steps of a few rows in one kernel (`mysgl_kernel.decoder`), for the models and devices that it is written for.

Weights, caches and the page table are the ones that the layers use; a step computes what the layers compute, up to the
order of sums. It attends by itself, so there is nothing for an attention backend to plan.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from mysgl_kernel import decoder
from mysglang.srt.forward.forward_batch import ForwardBatch
from mysglang.srt.kernels.activation import SWIGLU_ALPHA, SWIGLU_LIMIT
from mysglang.srt.layers.attention.graph import GraphAttentionBackend
from mysglang.srt.layers.attention.nothing_to_plan import NothingToPlan
from mysglang.srt.layers.parameter import dtype_name
from mysglang.srt.mem_cache.kv_pool.base import KvPool
from mysglang.srt.model_executor.programs import DoesNotCover
from mysglang.srt.model_executor.step_program import StepProgram, StepTensors
from mysglang.srt.models.checkpoint_model import TokenModel
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseDecoder, DenseLayer

logger = logging.getLogger(__name__)

MOST_ROWS = 4
"""Largest batch for the fused kernel. Above it, steps run layer by layer; larger batches were not measured."""

NO_SUCH_SIZE = f"it takes steps of up to {MOST_ROWS} rows, and none of these sizes is captured"

ACTIVATIONS = {
    "silu": decoder.SILU,
    "swigluoai": decoder.GatedActivation(steepness=SWIGLU_ALPHA, limit=SWIGLU_LIMIT, lift=1.0),
}
"""Activations of `kernels/activation.py` as the kernel computes them."""


class PersistentStep:
    """Runs decode steps of one batch size as one kernel."""

    def __init__(self, step: decoder.DecodeStep, pool: KvPool) -> None:
        self._step = step
        self.backend: GraphAttentionBackend = NothingToPlan(pool)

    def run(self, batch: ForwardBatch) -> StepTensors:
        step = self._step.run(batch.input_ids, batch.positions, batch.slots, batch.seq_lens, *batch.out_cache_locs)
        return StepTensors(*step)


def persistent_steps(
    model: TokenModel, pool: KvPool, page_tables: Sequence[Tensor], sizes: Sequence[int]
) -> dict[int, StepProgram]:
    """Builds the programs by size, for those sizes that the kernel supports; at least one. Raises DoesNotCover."""
    # To describe a model may take seconds, so all that refuses without it comes first.
    if pool.dtype is not torch.bfloat16:
        raise DoesNotCover(f"it does not read KV pages of {dtype_name(pool.dtype)}")
    if not decoder.fits_device():
        raise DoesNotCover("the kernel is written for Hopper GPUs")
    if all(size > MOST_ROWS for size in sizes):
        raise DoesNotCover(NO_SUCH_SIZE)
    try:
        described = describe_for_kernel(model)
        tensors = decoder_tensors(described, pool, page_tables)
        decoder.check(tensors, 1)
    except (CannotDescribe, decoder.DoesNotFitError) as error:
        raise DoesNotCover(str(error)) from error
    if not decoder.available([described.layers[0].spec.head_dim]):
        raise DoesNotCover("the kernel is neither built nor can be compiled here")
    steps: dict[int, StepProgram] = {}
    for size in sizes:
        if size <= MOST_ROWS:
            try:
                steps[size] = PersistentStep(decoder.DecodeStep(tensors, size), pool)
            except decoder.DoesNotFitError as error:
                logger.debug("Decode steps of %d rows run layer by layer, not as one kernel: %s", size, error)
    if not steps:
        raise DoesNotCover(NO_SUCH_SIZE)
    return steps


def describe_for_kernel(model: TokenModel) -> DenseDecoder:
    """Raises CannotDescribe if the model asks for what the kernel lacks."""
    if model.dtype is not torch.bfloat16:
        raise CannotDescribe(f"it computes in {dtype_name(model.dtype)}")
    capped = ["its scores are capped"] if any(spec.logit_cap for spec in model.attention_specs()) else []
    try:
        described = model.described()
    except CannotDescribe as error:
        raise CannotDescribe("; ".join([str(error), *capped])) from error
    if reasons := [*lacks(described), *capped]:
        raise CannotDescribe("; ".join(reasons))
    return described


def lacks(model: DenseDecoder) -> list[str]:
    """Returns what of the description the kernel does not support."""
    first, *others = model.layers
    activations = {layer.activation for layer in model.layers}
    eps = {norm.eps for layer in model.layers for norm in (layer.input_norm, layer.post_norm)}
    reasons = {
        f"its activations are not all {' or all '.join(ACTIVATIONS)}": (
            len(activations) > 1 or not activations <= set(ACTIVATIONS)
        ),
        "some layers have experts, and others have none or choose other ones": len(set(map(_choice, model.layers))) > 1,
        "its norms differ in eps": eps != {model.norm.eps},
        "its layers differ in scale, rotary positions or norms of heads": any(
            layer.spec.scale != first.spec.scale
            or layer.rotation.cos_sin is not first.rotation.cos_sin
            or _eps_of_heads(layer) != _eps_of_heads(first)
            for layer in others
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _choice(layer: DenseLayer) -> tuple[int, bool, bool] | None:
    """Returns how a layer chooses its experts; None: it has none."""
    router = layer.router
    return None if router is None else (router.top_k, router.renormalize, router.bias is None)


def _eps_of_heads(layer: DenseLayer) -> float | None:
    return None if layer.rotation.norms is None else layer.rotation.norms[2]


def decoder_tensors(model: DenseDecoder, pool: KvPool, page_tables: Sequence[Tensor]) -> decoder.DecoderTensors:
    """Returns the description in the form that the kernel takes."""
    first = model.layers[0]
    return decoder.DecoderTensors(
        layers=[_layer_tensors(layer, pool) for layer in model.layers],
        embedding=model.embedding,
        final_norm=model.norm.weight,
        lm_head=model.lm_head,
        cos_sin=first.rotation.cos_sin,
        page_tables=page_tables,
        page_size=pool.page_size,
        q_heads=first.spec.num_heads,
        eps=model.norm.eps,
        qk_eps=0.0 if first.rotation.norms is None else first.rotation.norms[2],
        scale=first.spec.scale,
        chosen=0 if first.router is None else first.router.top_k,
        renormalize=first.router is not None and first.router.renormalize,
        activation=ACTIVATIONS[first.activation],
    )


def _layer_tensors(layer: DenseLayer, pool: KvPool) -> decoder.LayerTensors:
    keys, values = pool.slots(layer.spec.layer_id)
    norms, router = layer.rotation.norms, layer.router
    return decoder.LayerTensors(
        qkv=layer.qkv.weight,
        qkv_bias=layer.qkv.bias,
        o=layer.o.weight,
        o_bias=layer.o.bias,
        gate_up=layer.gate_up.weight,
        gate_up_bias=layer.gate_up.bias,
        down=layer.down.weight,
        down_bias=layer.down.bias,
        input_norm=layer.input_norm.weight,
        post_norm=layer.post_norm.weight,
        q_norm=None if norms is None else norms[0],
        k_norm=None if norms is None else norms[1],
        keys=keys,
        values=values,
        window=layer.spec.window or 0,
        router=None if router is None else router.weight,
        router_bias=None if router is None else router.bias,
        sinks=layer.spec.sinks,
        space=pool.space_of(layer.spec.layer_id),
    )
