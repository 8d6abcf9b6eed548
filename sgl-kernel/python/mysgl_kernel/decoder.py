"""A whole decode step of a few rows in one kernel (`csrc/decoder/step.cu`): decoders in bfloat16, on Hopper. Models
whose MLPs are mixtures of experts have steps of one row.

Knows tensors only: weights, the KV cache, the page table and one step's inputs. Which layers of which model they come
from is the caller's affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Array, Structure, byref, c_float, c_int, c_longlong, c_void_p, sizeof
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

from mysgl_kernel.compiled import Launch
from mysgl_kernel.library import Library, current_stream, present_arch

MAX_ROWS = 8
MAX_GROUP = 8
"""Query heads that share one key-value head."""
MAX_EXPERTS = 256
"""Experts of a layer."""
MAX_CHOSEN = 16
"""Experts of a token."""
MAX_SPACES = 2
"""Spaces of pages: layers with a window may have pages of their own."""
MARKS = 23
"""Points of time in each layer that a trace notes."""


class DoesNotFitError(ValueError):
    """The kernel cannot run this model, or not steps of so many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer: weights [outputs, inputs], gains and biases [outputs], all dense bfloat16.

    Those of experts are stacked: [experts, ...].
    """

    qkv: Tensor
    """Rows of all query heads, then of all keys', then of all values'."""
    qkv_bias: Tensor | None = None
    o: Tensor
    o_bias: Tensor | None = None
    gate_up: Tensor
    """Rows of the gate, then as many of up. Experts have theirs stacked: [experts, 2 * inner, hidden]."""
    gate_up_bias: Tensor | None = None
    down: Tensor
    """Experts have theirs stacked: [experts, hidden, inner]."""
    down_bias: Tensor | None = None
    input_norm: Tensor
    post_norm: Tensor
    q_norm: Tensor | None = None
    """[head_dim], the norm of each query head, or None."""
    k_norm: Tensor | None = None
    keys: Tensor
    """[KV slots, kv_heads, head_dim], read and written."""
    values: Tensor
    window: int = 0
    """Keys that are visible, the token's own included; 0 for all."""
    router: Tensor | None = None
    """[experts, hidden], whose logits choose the experts; None: there are none."""
    router_bias: Tensor | None = None
    sinks: Tensor | None = None
    """[q_heads] float32: for each head the scaled score of one more key whose value is zero; None: there is none."""
    space: int = 0
    """The number of the space whose pages hold the layer's keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivation:
    """gate * sigmoid(steepness * gate) * (up + lift), of gate and up within a limit. The default is SiLU."""

    steepness: float = 1.0
    limit: float = math.inf
    """Largest gate, and largest absolute value of up."""
    lift: float = 0.0


SILU = GatedActivation()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTensors:
    """All that steps have in common."""

    layers: Sequence[LayerTensors]
    embedding: Tensor
    """[vocab, hidden]."""
    final_norm: Tensor
    lm_head: Tensor
    """[vocab, hidden]."""
    cos_sin: Tensor
    """[positions, head_dim] float32: cosines of the head_dim / 2 angles, then their sines."""
    page_tables: Sequence[Tensor]
    """[slots, max_pages] int32, one for each space: the page of each page_size tokens of a slot."""
    page_size: int
    q_heads: int
    eps: float
    qk_eps: float
    """Epsilon of the norms of heads."""
    scale: float
    """Factor of the scores."""
    chosen: int = 0
    """Experts of a token, those of the highest logits; 0: there are no experts. A gate is the expert's share of a
    softmax over all logits.
    """
    renormalize: bool = False
    """True if the gates of a token's experts are divided by their sum."""
    activation: GatedActivation = SILU


_INPUTS = ("ids", "positions", "slots", "seq_lens")
_LAYER_POINTERS = (
    *("qkv", "qkv_bias", "o", "o_bias", "gate_up", "gate_up_bias", "down", "down_bias"),
    *("input_norm", "post_norm", "q_norm", "k_norm", "keys", "values"),
)
_STEP_POINTERS = ("layer", "embedding", "final_norm", "lm_head", "cos_sin", *_INPUTS)
_STEP_TABLES = ("out_cache_locs", "page_tables")
_STEP_RESULTS = ("logits", "tokens", "workspace", "trace")
_STEP_SIZES = (
    *("rows", "layers", "hidden", "q_heads", "kv_heads", "inner", "vocab", "page_size", "max_pages"),
    *("experts", "chosen", "renormalize"),
)


class _Layer(Structure):
    """`Layer` in layout.cuh."""

    _fields_ = [
        *((name, c_void_p) for name in _LAYER_POINTERS),
        ("window", c_longlong),
        *((name, c_void_p) for name in ("router", "router_bias", "sinks")),
        ("space", c_longlong),
    ]


class _Step(Structure):
    """`Step` in layout.cuh; what follows `lift` is filled in by the plan."""

    _fields_ = [
        *((name, c_void_p) for name in _STEP_POINTERS),
        *((name, c_void_p * MAX_SPACES) for name in _STEP_TABLES),
        *((name, c_void_p) for name in _STEP_RESULTS),
        *((name, c_int) for name in _STEP_SIZES),
        *((name, c_float) for name in ("eps", "qk_eps", "scale", "steepness", "limit", "lift")),
        *((name, c_int) for name in ("grid", "stages", "rotation")),
        ("deals", c_int * 24),
        ("buffers", c_longlong * 11),
        ("places", c_int * 10),
    ]


_LIBRARIES = {
    head_dim: Library(
        "decoder/step.cu",
        # The source does not compile if its struct has another size than ours.
        flags=(f"-DMYSGL_HEAD_DIM={head_dim}", f"-DMYSGL_STEP_BYTES={sizeof(_Step)}"),
        archs=("90a",),
        traits={"head_dim": head_dim, "dtype": torch.bfloat16},
    )
    for head_dim in (64, 128)
}


def available(head_dims: Iterable[int] = tuple(_LIBRARIES)) -> bool:
    """True if the present device can run it for heads of these sizes."""
    return all(_LIBRARIES[head_dim].available() for head_dim in head_dims)


def fits_device() -> bool:
    """True if the kernel is written for the present device. It may be neither built nor possible to compile here."""
    arch = present_arch()
    return arch is not None and all(library.supports(arch) for library in _LIBRARIES.values())


@cache
def _plan(head_dim: int) -> Launch:
    return _LIBRARIES[head_dim].function("mysgl_decoder_plan", POINTER(_Step), POINTER(c_longlong))


@cache
def _launch(head_dim: int) -> Launch:
    return _LIBRARIES[head_dim].function("mysgl_decoder_step", POINTER(_Step), c_void_p)


class DecodeStep:
    """Steps of up to a fixed number of rows. Owns the memory in which multiprocessors exchange vectors.

    Steps of one object must follow one another on the device; so do all of one stream.
    """

    def __init__(self, model: DecoderTensors, rows: int) -> None:
        """Raises DoesNotFitError if this kernel cannot run such steps of this model on this device."""
        check(model, rows)
        first = model.layers[0]
        device = model.embedding.device
        self._model = model
        self._head_dim = first.keys.shape[2]
        self._layers = _layer_table(model.layers).to(device)
        self._step = step = _Step(
            layer=self._layers.data_ptr(),
            embedding=model.embedding.data_ptr(),
            final_norm=model.final_norm.data_ptr(),
            lm_head=model.lm_head.data_ptr(),
            cos_sin=model.cos_sin.data_ptr(),
            page_tables=_addresses(model.page_tables),
            rows=rows,
            layers=len(model.layers),
            hidden=first.o.shape[0],
            q_heads=model.q_heads,
            kv_heads=first.keys.shape[1],
            inner=first.down.shape[-1],
            vocab=model.lm_head.shape[0],
            page_size=model.page_size,
            max_pages=model.page_tables[0].shape[1],
            experts=0 if first.router is None else len(first.router),
            chosen=model.chosen,
            renormalize=model.renormalize,
            eps=model.eps,
            qk_eps=model.qk_eps,
            scale=model.scale,
            steepness=model.activation.steepness,
            limit=model.activation.limit,
            lift=model.activation.lift,
        )
        nbytes = c_longlong()
        try:
            _plan(self._head_dim)(byref(step), byref(nbytes))
        except torch.cuda.CudaError as error:
            raise DoesNotFitError(f"a step of {rows} rows does not fit into a multiprocessor") from error
        self._workspace = torch.zeros(nbytes.value, dtype=torch.uint8, device=device)
        step.workspace = self._workspace.data_ptr()
        self.logits = torch.zeros(rows, step.vocab, dtype=torch.bfloat16, device=device)
        """[rows, vocab] of the last step."""
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        """[rows]: the likeliest token, the lowest id among equals; -1 where a logit is not finite."""
        step.logits, step.tokens = self.logits.data_ptr(), self.tokens.data_ptr()

    @property
    def multiprocessors(self) -> int:
        return int(self._step.grid)

    def run(
        self, ids: Tensor, positions: Tensor, slots: Tensor, seq_lens: Tensor, *out_cache_locs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queue a step; returns `logits` and `tokens`, which the next step overwrites.

        ids, positions, slots (rows of the page tables), and out_cache_locs (KV slots to write, in each space): [rows]
        int64. seq_lens: [rows] int32, the new token included. Keys of earlier positions are in the cache.
        """
        step = self._step
        assert len(out_cache_locs) == len(self._model.page_tables)
        for tensor in (ids, positions, slots, seq_lens, *out_cache_locs):
            assert tensor.shape == (step.rows,) and tensor.is_contiguous()
            assert tensor.dtype == (torch.int32 if tensor is seq_lens else torch.int64)
        for name, tensor in zip(_INPUTS, (ids, positions, slots, seq_lens), strict=True):
            setattr(step, name, tensor.data_ptr())
        step.out_cache_locs = _addresses(out_cache_locs)
        _launch(self._head_dim)(byref(step), current_stream(ids))
        return self.logits, self.tokens

    def trace(self, *inputs: Tensor) -> Tensor:
        """Run a step and return clock ticks [layers, MARKS, multiprocessors] int64, each multiprocessor's own clock."""
        step = self._step
        ticks = torch.zeros(step.layers, MARKS, step.grid, dtype=torch.int64, device=self.logits.device)
        step.trace = ticks.data_ptr()
        self.run(*inputs)
        torch.cuda.synchronize()
        step.trace = None
        return ticks


def check(model: DecoderTensors, rows: int) -> None:
    """Raises DoesNotFitError, saying what this kernel was not written for."""
    head_dim, kv_heads = model.layers[0].keys.shape[2], model.layers[0].keys.shape[1]
    if head_dim not in _LIBRARIES:
        raise DoesNotFitError(f"heads have {head_dim} dimensions")
    if not 1 <= rows <= MAX_ROWS:
        raise DoesNotFitError(f"there are {rows} rows")
    if model.q_heads % kv_heads or model.q_heads // kv_heads > MAX_GROUP:
        raise DoesNotFitError(f"{model.q_heads} query heads share {kv_heads} key-value heads")
    _check_experts(model, rows)
    _check_layers(model)
    if not all(map(_is_plain, (model.embedding, model.final_norm, model.lm_head))):
        raise DoesNotFitError("the embedding, the last norm or the output are not dense bfloat16 tensors")
    if len(model.page_tables) > MAX_SPACES:
        raise DoesNotFitError(f"layers have pages of {len(model.page_tables)} spaces")
    for table in model.page_tables:
        if table.dtype != torch.int32 or not table.is_contiguous() or table.shape != model.page_tables[0].shape:
            raise DoesNotFitError("a page table is not a dense int32 tensor of the shape that all have")
    if model.cos_sin.dtype != torch.float32 or model.cos_sin.shape[1:] != (head_dim,):
        raise DoesNotFitError("cosines and sines are not [positions, head_dim] in float32")


def _check_layers(model: DecoderTensors) -> None:
    first = model.layers[0]
    head_dim, kv_heads = first.keys.shape[2], first.keys.shape[1]
    hidden, inner = model.embedding.shape[1], first.down.shape[-1]
    qkv = (model.q_heads + 2 * kv_heads) * head_dim
    stacked = () if first.router is None else (len(first.router),)
    shapes = {
        "qkv": (qkv, hidden),
        "o": (hidden, model.q_heads * head_dim),
        "gate_up": (*stacked, 2 * inner, hidden),
        "down": (*stacked, hidden, inner),
    }
    biases = {f"{name}_bias": shape[:-1] for name, shape in shapes.items()}
    optional = {**biases, "router_bias": stacked, "sinks": (model.q_heads,)}
    if any(shapes[name][-1] % 64 for name in ("qkv", "o", "down")):
        raise DoesNotFitError("a weight's rows are not a multiple of 64 long")
    for layer in model.layers:
        slots = (len(layer.keys), kv_heads, head_dim)
        expected = {**shapes, **optional, "keys": slots, "values": slots}
        for name, shape in expected.items():
            tensor = getattr(layer, name)
            if tensor is not None and tensor.shape != shape:
                raise DoesNotFitError(f"layers differ in their sizes, or {name} is not {list(shape)}")
        if (None if layer.router is None else layer.router.shape) != ((*stacked, hidden) if stacked else None):
            raise DoesNotFitError("layers differ in their experts")
        if not 0 <= layer.space < len(model.page_tables):
            raise DoesNotFitError(f"a layer has pages of space {layer.space}, which has no page table")
        for field in fields(layer):
            tensor = getattr(layer, field.name)
            dtype = torch.float32 if field.name == "sinks" else torch.bfloat16
            if isinstance(tensor, Tensor) and not _is_plain(tensor, dtype):
                raise DoesNotFitError(f"{field.name} is not a dense {str(dtype).removeprefix('torch.')} tensor")


def _check_experts(model: DecoderTensors, rows: int) -> None:
    router = model.layers[0].router
    if (router is None) != (model.chosen == 0):
        raise DoesNotFitError("a router and a number of experts for a token belong together")
    if router is None:
        return
    if len(router) % 4 or len(router) > MAX_EXPERTS or not 0 < model.chosen <= min(MAX_CHOSEN, len(router)):
        raise DoesNotFitError(f"a token goes through {model.chosen} of {len(router)} experts")
    if rows > 1:
        raise DoesNotFitError(f"there are {rows} rows, and each has experts of its own")


def _is_plain(tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> bool:
    return tensor.dtype == dtype and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _addresses(tensors: Sequence[Tensor]) -> Array[c_void_p]:
    return (c_void_p * MAX_SPACES)(*(tensor.data_ptr() for tensor in tensors))


def _layer_table(layers: Sequence[LayerTensors]) -> Tensor:
    """Returns the layers' pointers as the kernel reads them, in bytes."""
    table = (_Layer * len(layers))()
    for entry, layer in zip(table, layers, strict=True):
        for field in fields(layer):
            value = getattr(layer, field.name)
            setattr(entry, field.name, value.data_ptr() if isinstance(value, Tensor) else value)
    return torch.frombuffer(bytearray(table), dtype=torch.uint8)
