"""probe: a forward pass without numbers, which shows what each attention module of a model asks for.

A model runs on our pages only if all of it is known: the mask, the scale, the window, the soft cap. What is not known,
or what only a part of our attention computes, is refused here by its name, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.models.transformers_backend.interface import NoCache, Rotate, attending

TOKENS = 5
"""Tokens of the pass: more than the batch size, so that the two dimensions cannot be confused."""

SEEN_KEYS = 64
"""Keys before a query for which a mask without a window is looked at."""

HARMLESS = {"position_ids", "use_cache", "is_causal", "cache_position"}
"""Arguments that may be set: what they say is said to the model itself, or is what attention does."""


class Refused(ConfigError):
    """A model does something that is not served; the text says what."""


@dataclass(frozen=True, slots=True)
class CausalMask:
    """Replaces the mask of a layer: all keys before a query, or a window of them. It has no other methods, so a model
    that changes a mask cannot do so unseen.
    """

    window: int | None


class Call(NamedTuple):
    """One call of attention in a pass."""

    module: nn.Module
    spec: AttentionSpec
    sinks: str | None
    """The module's parameter that it hands over as sinks; None: it has none."""


@dataclass(slots=True)
class Probe:
    """Answers the attention calls of a pass without numbers. `calls`: each call of the pass, in order."""

    calls: list[Call] = field(default_factory=list)

    def mask(self, sees: Callable[..., Tensor], width: int | None) -> object:
        check_mask(sees, width)
        return CausalMask(width)

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return theirs(q, k, cos, sin)

    def embedded(self, x: Tensor) -> Tensor:
        return x

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
    ) -> Tensor:
        spec = spec_of(len(self.calls), module, q, k, v, mask, arguments)
        self.calls.append(Call(module, spec, sinks_of(module, arguments)))
        return v.new_zeros(1, q.shape[2], spec.num_heads, v.shape[3])


def spec_of(
    number: int, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
) -> AttentionSpec:
    """Returns the attention spec that this call asks for. Raises Refused for unsupported arguments."""
    kind = type(module).__name__
    if not isinstance(mask, CausalMask):
        made = "makes a mask of its own" if mask is not None else "attends without a mask"
        raise Refused(f"{kind} {made}, and only causal masks of transformers' own functions are served")
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        raise Refused(f"{kind} is not causal (is_causal)")
    known = {"scaling", "softcap", "sliding_window", "s_aux", *HARMLESS}
    for name, value in arguments.items():
        if name not in known and (isinstance(value, Tensor) or value):
            raise Refused(f"{kind} attends with {name}, which is not served")
    window = arguments.get("sliding_window")
    if window is not None and window != mask.window:
        raise Refused(f"{kind} asks for a window of {window} (sliding_window), and its mask has {mask.window}")
    for name, x in (("queries", q), ("keys", k), ("values", v)):
        if x.dim() != 4 or x.shape[0] != 1 or x.shape[2] != TOKENS:
            raise Refused(f"{kind} attends with {name} of shape {list(x.shape)} in a pass of {TOKENS} tokens")
    heads, kv_heads, head_dim = q.shape[1], k.shape[1], k.shape[3]
    if q.shape[3] != head_dim or v.shape[1] != kv_heads or heads % kv_heads or v.shape[3] > head_dim:
        raise Refused(
            f"{kind} attends with queries, keys and values of shapes {list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
        )
    scale = arguments.get("scaling")
    return AttentionSpec(
        layer_id=number,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5 if scale is None else float(scale),
        window=mask.window,
        logit_cap=float(arguments.get("softcap") or 0.0),
    )


def sinks_of(module: nn.Module, arguments: Mapping[str, Any]) -> str | None:
    """Returns the name of the parameter that the module hands over as sinks (s_aux), a number for each head."""
    sinks = arguments.get("s_aux")
    if sinks is None:
        return None
    for name, parameter in module.named_parameters(recurse=False):
        if parameter is sinks and parameter.dim() == 1:
            return name
    raise Refused(f"{type(module).__name__} attends with sinks that are no parameter of it (s_aux)")


def check_mask(sees: Callable[..., Tensor], width: int | None) -> None:
    """Compares a mask, key by key, with the causal one of that width. Raises Refused if they differ."""
    length = 2 * (width or SEEN_KEYS) + 3
    keys = torch.arange(length, device="cpu")
    edges = {0, 1, (width or 2) - 1, width or 2, (width or 2) + 1, length - 1}
    for query in sorted(edge for edge in edges if edge >= 0):
        expected = (keys <= query) & (keys > query - (width or length))
        try:
            found = sees(0, 0, torch.tensor(query, device="cpu"), keys).expand(length)
            same = torch.equal(found.cpu(), expected)
        except (RuntimeError, NotImplementedError):  # it depends on tensors of the pass
            same = False
        if not same:
            raise Refused("a mask of the model is neither causal nor a causal window")


@torch.no_grad()
def probe(model: nn.Module) -> list[Call]:
    """Runs a model without weights (on the meta device) and returns the attention calls of one pass, in order. Each
    call has pages of its own, also if a module attends several times.

    Raises Refused for a model that attends in a way that is not served, or does not run without numbers.
    """
    found = Probe()
    ids = torch.zeros(1, TOKENS, dtype=torch.int64, device="meta")
    try:
        with attending(found), torch.device("meta"):
            model(input_ids=ids, position_ids=ids, past_key_values=NoCache(), use_cache=True)
    except ConfigError:
        raise
    except Exception as error:  # the model is not ours: any error of it is the reason why it is not served
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Refused(f"it does not run with attention of ours ({text})") from error
    if not found.calls:
        raise Refused("it calls attention by no interface")
    return found.calls
