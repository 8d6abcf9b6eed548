"""replace_modules: replaces modules of a transformers model by ours, where ours compute the same.

Linears get the linear method of the launch, experts and gated MLPs our kernels, RMS norms ours. All other parameters
stay where they are, as parameters that load themselves. Norms and gated MLPs are recognized by what they compute,
not by their names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import PlusOneRMSNorm, RMSNorm
from mysglang.srt.layers.linear import LinearBase, ReplicatedLinear
from mysglang.srt.layers.parameter import FinishesWeights, Section, WeightParameter
from mysglang.srt.layers.quantization.int8wo import LM_HEAD
from mysglang.srt.layers.quantization.unquantized import Unquantized
from mysglang.srt.layers.vocab_parallel_embedding import TiedLMHead, VocabParallelEmbedding
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseLinear, DenseNorm, dense_linear, dense_norm
from mysglang.srt.models.transformers_backend.experts import (
    NAMES,
    ForeignExperts,
    are_experts,
    check_form,
    experts_like,
)
from mysglang.srt.models.transformers_backend.gated_mlp import ForeignMLP, gated_mlp_like, renamed_parts
from mysglang.srt.models.transformers_backend.probe import Refused
from mysglang.srt.models.weight_names import Target


class Projection(ReplicatedLinear):
    """Replaces an nn.Linear, or a Conv1D, whose checkpoint has the matrix [input, output]."""

    weight: Tensor

    def __init__(self, inputs: int, outputs: int, *, bias: bool, turned: bool, context: LayerContext) -> None:
        super().__init__(inputs, outputs, bias=bias, context=context)
        self.in_features, self.out_features = inputs, outputs
        if turned:
            self.weight = TurnedParameter.of(cast(WeightParameter, self.weight))

    def out_width(self, x: Tensor) -> int:
        return self.out_features

    def described(self) -> DenseLinear:
        return dense_linear(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class TurnedParameter(WeightParameter):
    """A matrix that the checkpoint stores transposed."""

    @classmethod
    def of(cls, parameter: WeightParameter) -> TurnedParameter:
        made: TurnedParameter = nn.Parameter.__new__(cls, parameter.data, requires_grad=False)
        vars(made).update(vars(parameter))
        return made

    def read(self, section: int | None = None) -> Tensor:
        return super().read(section).t()

    def _parts(self, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        return super()._parts(tensor.t() if tensor.dim() == 2 else tensor, section)


class SingleNumber(WeightParameter):
    """A parameter without dimensions, such as a factor that was learned."""

    def __new__(cls, dtype: torch.dtype) -> SingleNumber:
        self: SingleNumber = nn.Parameter.__new__(cls, torch.empty((), dtype=dtype), requires_grad=False)
        self.shard_dim, self.sections = 0, (Section(1, 0, 1),)
        return self

    def read(self, section: int | None = None) -> Tensor:
        return self.data

    def _parts(self, tensor: Tensor, section: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        if tensor.numel() != 1:
            raise ConfigError(f"has shape {list(tensor.shape)} in the checkpoint, but the model needs a single number")
        yield self.data.view(1), tensor.reshape(1)


class NormOfHeads(RMSNorm):
    """An RMSNorm whose input may have any leading dimensions."""

    def out_width(self, x: Tensor) -> int:
        return x.shape[-1]

    def described(self) -> DenseNorm:
        return dense_norm(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)


class PlusOneNormOfHeads(PlusOneRMSNorm):
    """A norm of heads with factor 1 + weight."""

    def out_width(self, x: Tensor) -> int:
        return x.shape[-1]

    def described(self) -> DenseNorm:
        raise CannotDescribe("its norms multiply by 1 + w")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view(x.shape)


NORMS = {"rms": NormOfHeads, "rms_plus_one": PlusOneNormOfHeads}


class TiedHead(TiedLMHead):
    """Logits from the table of embeddings. The input may have any leading dimensions."""

    def out_width(self, x: Tensor) -> int:
        return self.vocab_size

    def described(self) -> DenseLinear:
        return dense_linear(self)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)


def replace_modules(model: PreTrainedModel, context: LayerContext, device: torch.device) -> dict[str, Target]:
    """Replaces modules in place; parameters are made uninitialised on `device`.

    Returns each parameter's name in transformers' model -> where it is now, if not under that name. Raises Refused for
    what cannot be loaded, or not be quantized as the context says.
    """
    replacing = _Replacing(model, context, device)
    gone: tuple[str, ...] = ()
    for name, module in list(model.named_modules()):
        if name.startswith(gone):
            continue  # a part of what was replaced
        with device:
            if (new := replacing.instead_of(name, module)) is not None:
                path, _, own = name.rpartition(".")
                model.get_submodule(path)._modules[own] = new
                gone = (*gone, f"{name}.") if isinstance(new, ForeignMLP) else gone
    for module in model.modules():
        replacing.take_parameters(module)
    if not isinstance(context.quant, Unquantized):
        replacing.check_quantized()
    return replacing.renamed


class _Replacing:
    """The replacement of one model's parts."""

    def __init__(self, model: PreTrainedModel, context: LayerContext, device: torch.device) -> None:
        self.renamed: dict[str, Target] = {}
        self._model = model
        self._context = context
        self._device = device
        self._head = model.get_output_embeddings()
        self._tables: dict[int, tuple[str, nn.Module]] = {}
        """Embeddings by their weights as they were: a head that is tied to one comes later."""
        self._routers: set[nn.Module] = set()
        """Modules beside experts, such as routers. They are not quantized, like our own routers."""
        self._loading: dict[int, WeightParameter] = {}
        self._norms: dict[tuple[object, ...], str | None] = {}

    def instead_of(self, name: str, module: nn.Module) -> nn.Module | None:
        """Returns the replacement of a module, or None if it stays."""
        if any(are_experts(child) for child in module.children()):
            self._routers.update(child for child in module.children() if not any(True for _ in child.children()))
        if isinstance(module, nn.Embedding):
            self._tables[id(module.weight)] = name, module
            self.take_parameters(module)
        elif type(module) is nn.Linear:
            return self._linear(name, module)
        elif type(module) is Conv1D:
            sizes = cast(int, module.nx), cast(int, module.nf)
            return Projection(*sizes, bias=True, turned=True, context=self._context.under(name))
        elif are_experts(module):
            self.renamed |= {f"{name}.{old}": Target(f"{name}.{own}", None) for old, own in NAMES.items()}
            return experts_like(module, self._context.under(name))
        elif (mlp := gated_mlp_like(module, self._context.under(name))) is not None:
            self.renamed |= renamed_parts(name)
            return mlp
        elif (kind := self._norm_kind(module)) is not None:
            weight = cast(Tensor, module.weight)
            return NORMS[kind](weight.shape[0], cast(float, _eps(module)), self._context.under(name))
        return None

    def take_parameters(self, module: nn.Module) -> None:
        """Replaces the module's own parameters, and the buffers that checkpoints hold, by parameters that load
        themselves.
        """
        for own, parameter in list(module._parameters.items()):
            if parameter is not None and not isinstance(parameter, WeightParameter):
                if id(parameter) not in self._loading:
                    self._loading[id(parameter)] = _loading(parameter, own, self._device)
                module._parameters[own] = self._loading[id(parameter)]
        for own, buffer in list(module._buffers.items()):
            if buffer is None:
                continue
            if own in module._non_persistent_buffers_set:
                module._buffers[own] = buffer.to(self._device)
            elif buffer.dtype.is_floating_point:
                del module._buffers[own]
                module.register_parameter(own, _loading(buffer, own, self._device))
            else:
                raise Refused(f"its checkpoint holds {own} of {type(module).__name__}, a buffer of {buffer.dtype}")

    def check_quantized(self) -> None:
        """Raise Refused if the model multiplies with weights outside of its linears and experts."""
        for name, module in self._model.named_modules():
            known = isinstance(module, (LinearBase, ForeignExperts, nn.Embedding))
            if not known and module not in self._routers and any(each.dim() > 1 for each in module.parameters(False)):
                raise Refused(f"--quantization does not reach the weights of {name} ({type(module).__name__})")

    def _linear(self, name: str, linear: nn.Linear) -> nn.Module:
        if linear is self._head:
            context = self._context.under(LM_HEAD)
            if (tied := self._tables.get(id(linear.weight))) is not None:
                return self._tied(name, linear, *tied, context)
        elif linear in self._routers:
            context = replace(self._context.under(name), quant=Unquantized())
        else:
            context = self._context.under(name)
        sizes = linear.in_features, linear.out_features
        return Projection(*sizes, bias=linear.bias is not None, turned=False, context=context)

    def _tied(self, name: str, head: nn.Linear, of: str, table: nn.Module, context: LayerContext) -> nn.Module:
        """Returns the projection to logits for a model whose embedding shares its weight with it."""
        self.renamed[f"{name}.weight"] = Target(f"{of}.weight", None)
        biased = head.bias is not None
        return TiedHead(head.out_features, cast(VocabParallelEmbedding, table), bias=biased, context=context)

    def _norm_kind(self, module: nn.Module) -> str | None:
        """Returns which of our RMS norms computes what this module does; None: no one, or it is no norm.

        Both are run on random numbers, once for each class, size and epsilon: in float32, and in the dtype of the
        model, where they may round in different places.
        """
        parameters = dict(module.named_parameters())
        weight, eps = parameters.get("weight"), _eps(module)
        if set(parameters) != {"weight"} or weight is None or weight.dim() != 1 or not isinstance(eps, float):
            return None
        if any(True for _ in module.children()) or any(True for _ in module.buffers()):
            return None
        key = type(module), weight.shape[0], eps
        if key not in self._norms:
            dtype = self._context.dtype
            self._norms[key] = next((kind for kind in NORMS if _same_norm(module, kind, eps, dtype)), None)
        return self._norms[key]


def check_experts(model: nn.Module) -> None:
    """Raise Refused for experts of a form that our kernels do not compute."""
    for module in model.modules():
        if are_experts(module):
            check_form(module)


def _loading(tensor: Tensor, name: str, device: torch.device) -> WeightParameter:
    with device:
        if not tensor.dim():
            return SingleNumber(tensor.dtype)
        parameter = WeightParameter(tuple(tensor.shape), dtype=tensor.dtype)
    # Norms of any kind: dummy values are drawn near those that leave the stream unchanged.
    parameter.centre = 1.0 if tensor.dim() == 1 and name == "weight" else 0.0
    return parameter


def _eps(module: nn.Module) -> object:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _same_norm(module: nn.Module, kind: str, eps: float, dtype: torch.dtype) -> bool:
    size = cast(Tensor, module.weight).shape[0]
    generator = torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        values = torch.randn(size, generator=generator)
        x = torch.randn(3, size, generator=generator) * 3
    for each, bound in ((torch.float32, 1e-5), (dtype, 4 * torch.finfo(dtype).eps)):
        theirs = copy.deepcopy(module)
        theirs.weight = nn.Parameter(values.to(each), requires_grad=False)
        with torch.device("cpu"):
            ours = NORMS[kind](size, eps, LayerContext(dtype=each))
        ours.weight.data.copy_(values)
        if isinstance(ours, FinishesWeights):
            ours.process_weights_after_loading()
        try:
            found = theirs(x.to(each))
        except Exception:  # it takes something else than one tensor
            return False
        if not isinstance(found, Tensor) or not torch.allclose(found, ours(x.to(each)), rtol=bound, atol=bound):
            return False
    return True
