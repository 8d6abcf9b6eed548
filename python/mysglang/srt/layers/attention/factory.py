"""Names -> attention backends. A backend's module, and what it needs installed, is imported when it is chosen.

Steps with new prompt tokens and decode steps may have different backends; each is asked for by name or left open.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from mysglang.srt.environ import REFERENCE_OPS
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionSpec
from mysglang.srt.kernels.cuda.invariant_cut import partial_bytes
from mysglang.srt.kernels.fp8 import LARGEST
from mysglang.srt.layers.attention.by_space import by_space
from mysglang.srt.layers.attention.captured_prompts import CapturedElsewhere
from mysglang.srt.layers.attention.choosing import ChoosingBackend
from mysglang.srt.layers.attention.expanding import RowByRow, Way, expanding
from mysglang.srt.layers.attention.nothing_to_plan import NothingToPlan
from mysglang.srt.layers.attention.packed_rows import PACKED_BYTES, PackedRows
from mysglang.srt.layers.attention.prefill_runs import copied_bytes, hopper
from mysglang.srt.layers.attention.split import split
from mysglang.srt.layers.attention.stand_in import NOTHING_TO_BUILD, BackgroundBuild, KernelBuild
from mysglang.srt.mem_cache.kv_pool.base import KvPool

logger = logging.getLogger(__name__)

BACKENDS = {
    "cpu": "mysglang.srt.layers.attention.cpu_backend:CpuBackend",
    "flashinfer": "mysglang.srt.layers.attention.flashinfer_backend:FlashInferBackend",
    "invariant_cpu": "mysglang.srt.layers.attention.cpu_backend:make_invariant",
    "invariant_torch": "mysglang.srt.layers.attention.invariant_torch:InvariantTorchBackend",
    "invariant_triton": "mysglang.srt.layers.attention.invariant_triton:InvariantTritonBackend",
    "sgl_kernel": "mysglang.srt.layers.attention.sgl_kernel_backend:make_sgl_kernel",
    "torch_native": "mysglang.srt.layers.attention.torch_native_backend:TorchNativeBackend",
    "triton": "mysglang.srt.layers.attention.triton_backend:TritonBackend",
}
NO_LAYERS = "none"
"""Name of the attention of a model without a layer that attends."""
DECODE_ONLY = ("sgl_kernel",)
OVER_PAIRS = frozenset({"cpu", "invariant_cpu", "invariant_torch", "invariant_triton", "torch_native", "triton"})
"""Backends of our own kernels over keys and values, on every platform."""


@dataclass(frozen=True, slots=True)
class Speciality:
    """A requirement of some layers that only some backends fulfil."""

    asks: Callable[[AttentionSpec], bool]
    able: frozenset[str]
    reason: str
    """Why another backend does not take such a layer."""


SPECIALITIES = (
    Speciality(
        lambda spec: spec.latent_dim is not None,
        frozenset({"cpu", "invariant_torch", "sgl_kernel", "torch_native", "triton"}),
        "it does not attend over latent rows (multi-head latent attention)",
    ),
    Speciality(
        lambda spec: spec.chosen is not None,
        frozenset({"cpu", "torch_native", "triton"}),
        "results of layers that choose the tokens they attend to (DSA) depend on how many tokens a step has",
    ),
    Speciality(lambda spec: spec.chunked, OVER_PAIRS, "it does not attend within chunks"),
)

FP8 = frozenset(LARGEST)
FEWER_BITS = FP8 | {torch.bfloat16}
READS: Mapping[str, frozenset[torch.dtype]] = {
    "cpu": FP8,
    "flashinfer": FP8,
    "invariant_cpu": FP8,
    "invariant_torch": FEWER_BITS,
    "invariant_triton": FEWER_BITS,
    "torch_native": FEWER_BITS,
    "triton": FEWER_BITS,
}
"""Backend -> stored dtypes that it reads in addition to the dtype of the computation, which every backend reads."""

EXACT: Mapping[str, str] = {
    "cpu": "it divides its work on the host",
    "flashinfer": "FlashAttention 3 attends with the lengths that the host planned, and FlashAttention 2 puts partial "
    "results of several new tokens where a plan for the real lengths has them",
    "invariant_cpu": "it divides its work on the host",
    "invariant_torch": "it gathers keys on the host",
    "torch_native": "it gathers keys on the host",
}
"""Backend -> why the host must know how long all rows of a step are. All others take a bound: their kernels read the
lengths on the device, and read no key after a row's end. With our Triton kernels the order of the sums does not depend
on the bound either, so every bound gives the same bits. With sgl_kernel the bound decides where keys are cut into
pieces, so results are equal but for rounding.
"""
ASKED_FOR_ITSELF = frozenset({"torch_native"})
"""Backends for whose steps no other one is used: they are chosen to see what plain torch computes."""

HALF_DTYPES = (torch.bfloat16, torch.float16)
HALF_DIMS = (64, 128, 256)
HALF_ROWS = (576, 512)
"""Dtypes and head dimensions of flashinfer and sgl_kernel; sizes of latent rows and their values of sgl_kernel."""


@dataclass(frozen=True, slots=True)
class AskedBackends:
    """Backends that the user asks for; None or "auto" leaves the choice open."""

    both: str | None = None
    prefill: str | None = None
    decode: str | None = None


@dataclass(frozen=True, slots=True)
class ChosenBackends:
    """Names of the attention backends for prefill and for decode."""

    prefill: str
    decode: str
    stand_in: str = ""
    """The backend that prompts run on until the kernels of `prefill` are compiled; empty if they wait for nothing."""
    build: KernelBuild = field(default=NOTHING_TO_BUILD, compare=False)
    """The kernels of `prefill` that are being compiled."""

    def __str__(self) -> str:
        return self.prefill if self.prefill == self.decode else f"{self.prefill} (prefill), {self.decode} (decode)"


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """The computation for which a backend is chosen."""

    specs: Sequence[AttentionSpec]
    dtype: torch.dtype
    """Dtype of queries and results."""
    stored: torch.dtype
    """Dtype of the numbers in KV pages."""


def choose_backends(
    asked: AskedBackends,
    available: Sequence[str],
    specs: Sequence[AttentionSpec],
    dtype: torch.dtype,
    stored: torch.dtype | None = None,
) -> ChosenBackends:
    """Chooses a backend for each kind of step: the one that the user named, or the first of the platform's backends
    that supports these layers.

    dtype: of queries and results. stored: of the numbers in KV pages, the same if it is None. Raises ConfigError if
    what was asked for does not run on this platform, or not with this model.
    """
    task = AttentionTask(specs, dtype, stored or dtype)
    check_backends(asked, available, task)
    if not specs:
        return ChosenBackends(NO_LAYERS, NO_LAYERS)
    both, able = _given(asked.both), _for_all_steps(available)
    return ChosenBackends(
        _given(asked.prefill) or both or _choose("--prefill-attention-backend", able, task),
        _given(asked.decode) or both or _choose("--decode-attention-backend", available, task),
    )


def check_backends(asked: AskedBackends, available: Sequence[str], task: AttentionTask) -> None:
    """Raises ConfigError if a backend that the user named does not run on this platform, or not with these layers."""
    if not task.specs:
        refuse_backends(asked, "no layer of the model attends over keys")
        return
    both, able = _given(asked.both), _for_all_steps(available)
    if both in DECODE_ONLY:
        raise ConfigError(
            f"--attention-backend {both} is for decode steps only: use --decode-attention-backend {both}."
        )
    _check("--attention-backend", both, able, task)
    _check("--prefill-attention-backend", _given(asked.prefill), able, task)
    _check("--decode-attention-backend", _given(asked.decode), available, task)


def refuse_backends(asked: AskedBackends, why: str) -> None:
    """Raises ConfigError if a backend was asked for, which a model has no use for. `why`: a clause."""
    flags = {
        "--attention-backend": asked.both,
        "--prefill-attention-backend": asked.prefill,
        "--decode-attention-backend": asked.decode,
    }
    for flag, name in flags.items():
        if _given(name) is not None:
            raise ConfigError(f"{flag} {name}: {why}. Leave it out.")


@dataclass(frozen=True, slots=True)
class LateAttention:
    """The attention of steps with rows whose length only the device may know."""

    names: ChosenBackends
    why_exact: str
    """Why all lengths must be known before such a step is planned, a clause; empty: they need not be."""


def choose_for_late_rows(
    chosen: ChosenBackends, available: Sequence[str], task: AttentionTask, *, host_reads: bool
) -> LateAttention:
    """Chooses the backends for steps that try drafts: the chosen ones if they read lengths on the device, otherwise the
    first backend of the platform that does. Steps without a prompt run with that for decode steps.

    host_reads: the host can read lengths from the device without waiting, so every backend takes such steps.
    """
    if host_reads:
        return LateAttention(chosen, "")
    if any(spec.chosen is not None for spec in task.specs):
        return LateAttention(chosen, "the keys that an indexer chooses from are gathered on the host")
    able = [name for name in dict.fromkeys((chosen.decode, *available)) if _takes_bounds(name, task)]
    prompts = [name for name in (chosen.prefill, *able) if name in able and name not in DECODE_ONLY]
    if not prompts or (chosen.prefill in ASKED_FOR_ITSELF and chosen.prefill in EXACT):
        return LateAttention(chosen, f"{chosen.prefill} must know how long rows are: {EXACT[chosen.prefill]}")
    return LateAttention(ChosenBackends(prompts[0], able[0]), "")


def _takes_bounds(name: str, task: AttentionTask) -> bool:
    """True if the backend attends in steps that try drafts with lengths that only the device knows."""
    # Where a window begins depends on the length, so a plan of our decode kernel for such a layer needs it. Its kernel
    # for latent rows takes one new token of each row.
    exact = name == "sgl_kernel" and any(spec.window or spec.latent_dim for spec in task.specs)
    return name not in EXACT and not exact and not why_not(name, task)


def without_waiting(
    chosen: ChosenBackends, asked: AskedBackends, available: Sequence[str], task: AttentionTask, device: torch.device
) -> ChosenBackends:
    """Returns these backends, of which another stands in for the one for prompts while its kernels are compiled.

    That is so if they are not compiled yet and no option names the backend. Compiling begins now, in the background.
    """
    named = _given(asked.prefill) or _given(asked.both)
    if named is not None or chosen.prefill != "flashinfer" or chosen.decode == "flashinfer":
        return chosen
    others = [name for name in available if name != "flashinfer" and name not in DECODE_ONLY]
    stand_in = next((name for name in others if not why_not(name, task)), None)
    build = importlib.import_module("mysglang.srt.layers.attention.flashinfer_build")
    missing = [] if stand_in is None else build.missing(task.specs, task.dtype, task.stored, device)
    if stand_in is None or not missing:
        return chosen
    building = BackgroundBuild("flashinfer", stand_in, partial(build.compile_all, missing))
    return replace(chosen, stand_in=stand_in, build=building)


def why_not(name: str, task: AttentionTask) -> str:
    """Returns why the backend cannot run such layers over such pages; empty if it can."""
    return _why_not_layers(name, task.specs, task.dtype) or _why_not_pages(name, task)


def _why_not_pages(name: str, task: AttentionTask) -> str:
    """Returns why the backend cannot read the stored numbers; empty if it can."""
    if task.stored is task.dtype or task.stored in READS.get(name, ()):
        return ""
    return f"it does not read KV pages of {task.stored} where it computes in {task.dtype} (--kv-cache-dtype)"


def _why_not_layers(name: str, specs: Sequence[AttentionSpec], dtype: torch.dtype) -> str:
    for each in SPECIALITIES:
        if name not in each.able and any(each.asks(spec) for spec in specs):
            return each.reason
    if name in ("flashinfer", "sgl_kernel"):
        if dtype not in HALF_DTYPES:
            return f"it does not compute in {dtype}"
        if any(spec.head_dim not in HALF_DIMS for spec in specs if spec.latent_dim is None):
            return f"it takes heads of {', '.join(map(str, HALF_DIMS))} dimensions only"
        if any((spec.head_dim, spec.latent_dim) != HALF_ROWS for spec in specs if spec.latent_dim is not None):
            return "it takes latent rows of {} numbers with a value of {} only".format(*HALF_ROWS)
    if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer is not installed here"
    if name in ("triton", "invariant_triton") and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed here"
    if name in ("cpu", "invariant_cpu"):
        return _why_not_cpu(specs, dtype)
    if name == "sgl_kernel" and not _kernels_run(specs, dtype):
        return "its kernels are neither built nor can be compiled here (the log says why)"
    return ""


def workspace_bytes(names: ChosenBackends, specs: Sequence[AttentionSpec], *, max_tokens: int, max_context: int) -> int:
    """Returns the number of bytes that attention needs in addition to its arguments and results, in a step with at most
    that many new tokens and rows of that length.
    """
    if names.prefill == "flashinfer" and hopper():
        return max((copied_bytes(each, max_context) for each in specs), default=0)
    if names.prefill == "triton" and any(each.latent_dim is not None for each in specs):
        return PACKED_BYTES
    if "invariant_triton" not in (names.prefill, names.decode):
        return 0
    return max((partial_bytes(max_tokens, max_context, each.num_heads, each.head_dim) for each in specs), default=0)


def create_attention_backend(
    names: ChosenBackends,
    pool: KvPool,
    page_tables: Sequence[Tensor],
    specs: Sequence[AttentionSpec],
) -> AttentionBackend:
    """Returns the chosen backends, for the pool and the page tables: one table for each page space ([num_slots + 1,
    max_pages] int32, changed by others).
    """
    if not specs:
        return NothingToPlan(pool)
    if len(page_tables) == 1:
        return _create(names, pool, page_tables[0], specs)
    backends = {}
    for store in pool.stores:
        own = [spec for spec in specs if spec.layer_id in store.layer_ids]
        backends[store.space] = _create(names, store, page_tables[store.space], own)
    return by_space(pool, backends)


def _create(
    names: ChosenBackends, pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]
) -> AttentionBackend:
    make = partial(_make, pool=pool, page_table=page_table, specs=specs)
    prefill = names.build.backend(partial(make, names.stand_in), partial(make, names.prefill))
    one = names.decode == names.prefill and not names.stand_in
    decode = prefill if one else make(names.decode)
    if names.prefill == "flashinfer":
        prefill = CapturedElsewhere(prefill, decode if names.decode == "triton" else make("triton"))
    both = split(prefill, decode)
    top_k = next((spec.chosen.top_k for spec in specs if spec.chosen is not None), None)
    if top_k is not None:
        both = ChoosingBackend(both, pool, page_table, top_k=top_k)
    way = _way(names.prefill, pool, page_table, specs)
    return both if way is None else expanding(both, pool, way, longest=top_k)


def _way(name: str, pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]) -> Way | None:
    """Returns how rows of latent layers are expanded beside this backend for prompts; None if none is.

    Deterministic inference attends in one way, and elsewhere than on a CPU dense attention has no kernel.
    """
    if all(spec.latent_dim is None for spec in specs):
        return None
    if name == "triton":
        return PackedRows(pool, page_table, max(spec.num_heads for spec in specs))
    on_cpu = name in ("cpu", "torch_native") and page_table.device.type == "cpu"
    return RowByRow(pool, page_table) if on_cpu else None


def _make(name: str, pool: KvPool, page_table: Tensor, specs: Sequence[AttentionSpec]) -> AttentionBackend:
    module, _, attribute = BACKENDS[name].partition(":")
    make: Callable[..., AttentionBackend] = getattr(importlib.import_module(module), attribute)
    return make(pool, page_table, specs) if name in DECODE_ONLY else make(pool, page_table)


def _given(name: str | None) -> str | None:
    return None if name == "auto" else name


def _for_all_steps(available: Sequence[str]) -> list[str]:
    """Returns the backends that can run steps with prompts, too."""
    return [name for name in available if name not in DECODE_ONLY]


def _choose(flag: str, available: Sequence[str], task: AttentionTask) -> str:
    reasons = {each: why_not(each, task) for each in available}
    able = next((each for each, reason in reasons.items() if not reason), None)
    if able is None:
        listed = "; ".join(f"{each}: {reason}" for each, reason in reasons.items())
        raise ConfigError(f"no attention backend of this device takes the layers of this model. {listed}")
    # A faster one may have been given up for fewer bits of a page: the user should know what they cost.
    for better in available[: available.index(able)]:
        if not _why_not_layers(better, task.specs, task.dtype):
            logger.info("%s: using %s instead of %s, because %s.", flag, able, better, reasons[better])
    return able


def _check(flag: str, name: str | None, available: Sequence[str], task: AttentionTask) -> None:
    if name is None:
        return
    if name not in available:
        raise ConfigError(f"{flag} {name} does not run here. Choose one of {', '.join(available)}.")
    if reason := why_not(name, task):
        raise ConfigError(f"{flag} {name}: {reason}. Choose another, or none.")


def _why_not_cpu(specs: Sequence[AttentionSpec], dtype: torch.dtype) -> str:
    if dtype is not torch.bfloat16:
        return f"it does not compute in {dtype}"
    if REFERENCE_OPS.get():
        return f"{REFERENCE_OPS.name} asks for plain torch"
    if importlib.util.find_spec("mysgl_kernel") is None:
        return "the package mysgl_kernel is not installed here"
    kernel = importlib.import_module("mysgl_kernel.cpu.attention")
    if any(spec.head_dim not in kernel.HEAD_DIMS for spec in specs if spec.latent_dim is None):
        return f"it takes heads of {', '.join(map(str, kernel.HEAD_DIMS))} dimensions only"
    widths = {width for spec in specs if spec.latent_dim is not None for width in (spec.head_dim, spec.latent_dim)}
    if any(width % kernel.LATENT_STEP for width in widths):
        return f"it takes latent rows of multiples of {kernel.LATENT_STEP} numbers only"
    return "" if kernel.available() else "its kernel is neither built nor can be compiled here (the log says why)"


def _kernels_run(specs: Sequence[AttentionSpec], dtype: torch.dtype) -> bool:
    """True if our CUDA kernels can run these layers; may compile them."""
    if importlib.util.find_spec("mysgl_kernel") is None:
        return False
    attention, latent = (importlib.import_module(f"mysgl_kernel.{name}") for name in ("attention", "latent_attention"))
    dims = {spec.head_dim for spec in specs if spec.latent_dim is None}
    over_rows = any(spec.latent_dim is not None for spec in specs)
    return all(attention.takes(dim, dtype) for dim in dims) and (not over_rows or latent.takes(dtype))
