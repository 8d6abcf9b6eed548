"""TransformersCausalLM: a causal language model whose layers are transformers' code, over our pages.

    config.json ─> the class, without weights ─> a pass without numbers: what each attention module asks for (probe.py)
                                             └─> linears, experts and norms become ours (replacing.py)
                                             └─> our loader fills it by transformers' table of names (names.py)

A step is one row of all its tokens, with a position each; attention finds out which belong together. The projection
to logits is transformers' too, with all that a class does behind it, run on hidden states that are handed to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rope_config import overridden
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, StateSpec
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import WeightParameter
from mysglang.srt.layers.radix_attention import RadixAttention
from mysglang.srt.layers.rotary_embedding import turn_heads
from mysglang.srt.models.checkpoint_model import DecodesRows, TokenModel
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseDecoder
from mysglang.srt.models.transformers_backend.classes import build, build_without_numbers, causal_lm_class, config_of
from mysglang.srt.models.transformers_backend.interface import NoCache, NormsSums, Rotate, attending, current
from mysglang.srt.models.transformers_backend.names import ForeignNames
from mysglang.srt.models.transformers_backend.plain_attention import PlainAttention
from mysglang.srt.models.transformers_backend.probe import Call, CausalMask, Refused, probe
from mysglang.srt.models.transformers_backend.replacing import replace_modules
from mysglang.srt.models.transformers_backend.rotary import use_our_rotary
from mysglang.srt.models.weight_names import Target
from mysglang.srt.utils.model_source import model_source

CHECKED = 8
"""Tokens of the sequence that a loaded model is checked with."""

CAUSAL = CausalMask(None)
"""The mask argument of a model in a step. The layer's spec says which keys it sees."""


class TransformersCausalLM(TokenModel):
    """A model that runs transformers' code with parts replaced. `lm`: the model."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        super().__init__(config, context, stage)
        try:
            self._build(config, context, torch.get_default_device())
        except Refused as error:
            raise ConfigError(
                *(f"{config.architecture} is not served by transformers' code: {why}" for why in error.problems)
            ) from error

    def _build(self, config: ModelConfig, context: LayerContext, device: torch.device) -> None:
        kind = causal_lm_class(config.architecture)
        keys = overridden(model_source(Path(config.path)).config(), config.overrides)
        foreign = config_of(kind, keys)
        _check_agreement(config, foreign.get_text_config())
        hollow = build_without_numbers(kind, copy.deepcopy(foreign), context.dtype)
        calls = probe(hollow)
        names = {module: name for name, module in hollow.named_modules()}
        with torch.device("cpu"):
            self.lm = build(kind, foreign, context.dtype)
        self.lm.tie_weights()
        renamed: dict[str, Target] = {}
        self._names = ForeignNames(self.lm, renamed, "lm")
        renamed |= replace_modules(self.lm, context, device)
        use_our_rotary(self.lm)
        by_name = dict(self.lm.named_modules())
        # In tuples, where torch does not count the modules again.
        self._calls = tuple(_layer(by_name[names[call.module]], call, device) for call in calls)
        body: nn.Module = getattr(self.lm, self.lm.base_model_prefix, self.lm)
        if body is self.lm:
            raise Refused("its class has no body beside the projection to logits")
        table = self.lm.get_input_embeddings()
        if table is None or table.weight.shape[1] != config.hidden_size:
            raise Refused("its embeddings are of another size than its hidden states")
        table.register_forward_hook(_put_embeds)
        self._body = (body,)
        self._head = _head_of(self.lm)
        self._read: Describes | None = None
        self._cannot_describe = ""
        """Why it cannot be described, once that was found; empty: it may be."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Computes [W, hidden_size] hidden states of the wanted tokens after the last norm."""
        (body,) = self._body
        with attending(StepAttention(self._calls, replace(batch, tail=None))):
            hidden = _body_states(body, batch.input_ids, batch.positions)
        return batch.wanted(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Computes logits, [N, hidden_size] -> [N, vocab_size], in the dtype that the class gives them."""
        head, body = self._head
        body.states = [hidden[None]]
        logits: Tensor = head().logits[0]
        return logits

    def attention_specs(self) -> list[AttentionSpec]:
        return [layer.spec for _, layer in self._calls]

    def state_specs(self) -> list[StateSpec]:
        return []

    def workspace(self, max_tokens: int) -> int:
        return 0

    def compiled(self, backend: str) -> DecodesRows:
        # Imported here, because torch's tracer takes seconds to import.
        from mysglang.srt.models.transformers_backend.compiled import CompiledBody

        (body,) = self._body
        return CompiledDecoder(CompiledBody(body, backend), self._calls)

    def described(self) -> DenseDecoder:
        if self._cannot_describe:
            raise CannotDescribe(self._cannot_describe)
        try:
            if self._read is None:
                self._read = self._read_graphs()
            return self._read.tensors()
        except CannotDescribe as error:
            # It will be asked again after each release of its memory, and its code is what it was.
            self._cannot_describe = str(error)
            raise

    def _read_graphs(self) -> Describes:
        # Imported here, because torch's tracer takes seconds to import.
        from mysglang.srt.models.transformers_backend.described import read

        head, handed = self._head

        def hand_over(hidden: Tensor) -> None:
            handed.states = [hidden]

        return read(*self._body, head, hand_over, self.attention_specs(), self.config.context_len)

    def weight_names(self) -> ForeignNames:
        return self._names

    def ignores(self, name: str) -> bool:
        return self._names.ignores(name)

    @torch.no_grad()
    def check_loaded(self) -> None:
        """Compares a sequence that is computed in pieces, beside another one, with the same sequence computed whole.

        They differ if a layer looks at other tokens by another way than attention, or at another position than the
        given one. Logits of handed hidden states are compared with those of the whole class, too. A context of one
        token has no pieces, and nothing is compared.
        """
        (body,) = self._body
        device = next(self.parameters()).device
        specs = self.attention_specs()
        length = min(CHECKED, self.config.context_len)
        if length < 2:
            return
        ids = torch.arange(1, length + 1, device=device) % self.config.vocab_size
        other = ids.flip(0)
        positions = torch.arange(length, device=device)

        def states(plain: PlainAttention, *runs: tuple[int, int, int]) -> Tensor:
            """Returns the hidden states of some tokens, each run given as (sequence, first, end)."""
            plain.runs = [(sequence, end - start) for sequence, start, end in runs]
            tokens = torch.cat([(other if sequence else ids)[start:end] for sequence, start, end in runs])
            places = torch.cat([positions[start:end] for _, start, end in runs])
            with attending(plain):
                return _body_states(body, tokens, places)

        whole = states(PlainAttention(specs), (0, 0, length))
        if not whole.isfinite().all():
            raise ConfigError(
                f"{self.config.architecture}: hidden states in {self.config.dtype} are not finite numbers: weights of "
                "the checkpoint are not, or they are too large for this dtype; use another --dtype, or download it "
                "again"
            )
        pieces, a, b = PlainAttention(specs), length // 4, length // 2
        found = torch.cat(
            [
                states(pieces, (1, 0, b), (0, 0, a))[b:],
                states(pieces, (0, a, b), (1, b, length))[: b - a],
                states(pieces, (0, b, length)),
            ]
        )
        plain = PlainAttention(specs, runs=[(0, length)])
        with attending(plain):
            logits = self.lm(
                input_ids=ids[None], position_ids=positions[None], past_key_values=NoCache(), use_cache=True
            ).logits[0]
        reasons = {
            "its layers see other tokens than by attention, or other positions than the given ones: a prompt in "
            "pieces is not what it is whole": (found, whole),
            "its logits are not those of its last hidden states alone": (self.compute_logits(whole), logits),
        }
        bound = 1e-3 if whole.dtype is torch.float32 else 0.1
        for reason, (one, same) in reasons.items():
            if not (error := _middle_error(one, same)) < bound:
                raise ConfigError(
                    f"{self.config.architecture} is not served by transformers' code: {reason} (relative error "
                    f"{error:.2g})"
                )


def _layer(module: nn.Module, call: Call, device: torch.device) -> tuple[nn.Module, RadixAttention]:
    """Returns a module, and the attention spec of one of its calls. Its sinks are kept in float32, as backends read
    them.
    """
    if call.sinks is None:
        return module, RadixAttention(call.spec)
    if getattr(module, call.sinks).dtype is not torch.float32:
        with device:
            module._parameters[call.sinks] = WeightParameter((call.spec.num_heads,), dtype=torch.float32)
    return module, RadixAttention(replace(call.spec, sinks=getattr(module, call.sinks)))


@dataclass(slots=True)
class StepAttention:
    """Answers the attention calls of one step of the server."""

    calls: Sequence[tuple[nn.Module, RadixAttention]]
    """In order."""
    batch: ForwardBatch
    _next: int = 0

    def mask(self, sees: Callable[..., Tensor], width: int | None) -> object:
        return CAUSAL

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return turn_heads(q, k, cos, sin)

    def embedded(self, x: Tensor) -> Tensor:
        return x if self.batch.embeds is None else self.batch.embeds.put(x[0])[None]

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
    ) -> Tensor:
        expected, layer = self.calls[self._next]
        self._next += 1
        assert module is expected, "a pass attends as the one did that was looked at"
        return _attended(layer, q, k, v, self.batch)


@dataclass(slots=True)
class CompiledAttention(StepAttention):
    """Answers the calls of a step of compiled code, which names our layers and the attention calls by number."""

    layers: Sequence[nn.Module] = ()
    """Our layers in the model."""

    def layer(self, number: int, x: Tensor, others: Sequence[Tensor]) -> Tensor:
        found: Tensor = self.layers[number](x, *others)
        return found

    def sum_and_norm(self, number: int, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        norm = cast(NormsSums, self.layers[number])
        parts = norm.sum_and_norm(*(each.reshape(-1, each.shape[-1]) for each in (x, residual)))
        return parts[0].view(x.shape), parts[1].view(x.shape)

    def attend_call(self, number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attended(self.calls[number][1], q, k, v, self.batch).contiguous()


def _attended(layer: RadixAttention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
    """Attends over our pages; shapes as of `Attends.attend`."""
    tokens, narrow = q.shape[2], v.shape[3]
    if narrow < layer.spec.head_dim:
        v = F.pad(v, (0, layer.spec.head_dim - narrow))
    q, k, v = (x[0].transpose(0, 1).reshape(tokens, -1) for x in (q, k, v))
    out: Tensor = layer(q, k, v, batch)
    return out.view(1, tokens, layer.spec.num_heads, -1)[..., :narrow]


class Describes(Protocol):
    """A model whose graphs were read (`described.ReadModel`)."""

    def tensors(self) -> DenseDecoder: ...


class Compiled(Protocol):
    """The layers of a model as compiled code (`compiled.CompiledBody`)."""

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Our layers, by number."""
        ...

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor: ...


class CompiledDecoder:
    """The model in decode steps, with its layers compiled (a `checkpoint_model.DecodesRows`)."""

    def __init__(self, body: Compiled, calls: Sequence[tuple[nn.Module, RadixAttention]]) -> None:
        self._body = body
        self._calls = calls

    def forward(self, batch: ForwardBatch) -> Tensor:
        with attending(CompiledAttention(self._calls, replace(batch, tail=None), layers=self._body.layers)):
            hidden = self._body(batch.input_ids, batch.positions)
        return batch.wanted(hidden)


class Handed(nn.Module):
    """Replaces a class's body, or the part of it that the class calls: returns hidden states that were computed
    before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Tensor] = []
        """The hidden states that the next call returns."""

    def forward(self, *_: Any, **__: Any) -> HandedStates:
        return HandedStates(self.states.pop())

    def __getattr__(self, name: str) -> Handed:
        return self


@dataclass(frozen=True)
class HandedStates:
    """The output class of a transformers body, with the last hidden states only."""

    last_hidden_state: Tensor

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _head_of(lm: Any) -> tuple[nn.Module, Handed]:
    """Returns a copy of the model that shares its parts and whose body returns given hidden states, and that body."""
    head, body = copy.copy(lm), Handed()
    head._modules = {**lm._modules, lm.base_model_prefix: body}
    return head, body


def _body_states(body: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    """Returns the hidden states [T, hidden_size] of tokens with these ids and positions, each [T]."""
    found = body(input_ids=ids[None], position_ids=positions[None], past_key_values=NoCache(), use_cache=True)
    hidden: Tensor = found[0][0]
    return hidden


def _put_embeds(_: nn.Module, __: Any, embedded: Tensor) -> Tensor:
    """Replaces the embeddings of tokens by given vectors, in a step that has such vectors."""
    return current().embedded(embedded)


def _check_agreement(config: ModelConfig, foreign: Any) -> None:
    """Raises Refused if mysglang and transformers understand config.json differently."""
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
    }
    for name, ours in sizes.items():
        if (theirs := getattr(foreign, name, ours)) != ours:
            raise Refused(f"config.json says {name} {ours}, and transformers reads {theirs}")


def _middle_error(found: Tensor, expected: Tensor) -> float:
    """Returns the median of the tokens' relative errors: a near tie of a router may send one token to other experts."""
    errors = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return float(errors.median())
