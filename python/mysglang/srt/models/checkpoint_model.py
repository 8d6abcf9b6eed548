"""CheckpointModel: a model that fills itself from the tensors of a checkpoint, and says what does not fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, NamedTuple, Protocol, Self

from torch import Tensor, nn

from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.pipeline import Stage
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch, StateSpec
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import WeightParameter, weight_parameters
from mysglang.srt.models.dense_decoder import CannotDescribe, DenseDecoder
from mysglang.srt.models.weight_names import Names

OWN_KERNELS = "its layers are code of mysglang, whose kernels are fused by hand"
"""Why most models are not compiled."""
MAX_NAMES = 5  # of the tensors that an error lists
HEADS = frozenset({"lm_head", "score", "v_head", "classifier", "dense"})
"""Modules that stand outside the transformer, so checkpoints have their tensors without its prefix."""
MAX_PROBLEMS = 8
"""Number of problems that one error message lists."""


class CheckpointModel(nn.Module, ABC):
    """This rank's part of a model."""

    ignored: ClassVar[tuple[str, ...]] = ()
    """Endings of checkpoint tensors that are computed here instead, or not needed."""
    ignored_prefixes: ClassVar[tuple[str, ...]] = ()
    """Beginnings of such tensors: those of a draft that comes in the same checkpoint."""

    def __init__(self, config: ModelConfig, context: LayerContext, stage: Stage) -> None:
        """Parameters are made uninitialised, on torch's default device."""
        super().__init__()
        self.config = config
        self.dtype = context.dtype
        """The dtype that the model computes in."""
        self.layouts: Mapping[str, WeightParameter] = {}
        """All parameters by name, without memory, as they were before they were converted."""

    @abstractmethod
    def weight_names(self) -> Names:
        """Returns the table from the checkpoint's names to those of the parameters."""

    def ignores(self, name: str) -> bool:
        """True if a checkpoint tensor that no parameter takes may be ignored."""
        return name.endswith(self.ignored) or name.startswith(self.ignored_prefixes)

    def check_loaded(self) -> None:
        """Checks the model after its weights were loaded. Raises ConfigError if it would compute wrong results."""

    def check_headers(self, headers: Iterable[tuple[str, Callable[[], Tensor]]]) -> None:
        """Checks a whole checkpoint before its weights are read. `headers`: the name of every tensor, and a function
        that returns its shape and dtype as a tensor on the meta device.

        Raises ConfigError with all that `load_weights` would refuse, but for values.
        """
        matching = Matching(self, weight_parameters(self))
        problems = []
        for name, header in headers:
            place = matching.place(name)
            if place is not None and (problem := place.misfit(name, header())) is not None:
                problems.append(problem)
        if problems := first_few([*problems, *matching.lacking(), *matching.unknown()]):
            raise ConfigError(*problems)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, num_threads: int = 1) -> None:
        """Fill every parameter from a checkpoint's tensors, of which `num_threads` are read and copied at a time.

        Raises ConfigError for tensors that are missing, have another shape, or belong to no parameter. What is in
        the checkpoint twice (a tied table) must be equal.
        """
        matching = Matching(self, weight_parameters(self))
        with Copies(num_threads) as copies:
            for name, tensor in weights:
                place = matching.place(name)
                if place is None:
                    continue
                if not place.first:
                    # A second tensor for the same place is compared with the values of the first.
                    copies.finish()
                copies.add(name, place.parameter.load if place.first else place.parameter.check, tensor, place.section)
        if problems := [*matching.lacking(), *matching.unknown()]:
            raise ConfigError(*problems)


class Copies:
    """Tensors on their way into parameters. Leaving the context waits for all of them."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights")
        self._most = 2 * num_threads
        self._open: deque[tuple[str, Future[None]]] = deque()

    def add(self, name: str, load: Callable[[Tensor, int | None], None], tensor: Tensor, section: int | None) -> None:
        """Starts one more copy. Raises ConfigError naming an earlier tensor that did not fit."""
        self._open.append((name, self._pool.submit(load, tensor, section)))
        while len(self._open) > self._most:
            self._wait_for_oldest()

    def finish(self) -> None:
        """Waits for all copies. Raises ConfigError if a tensor disagrees with an earlier one."""
        while self._open:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        name, copy = self._open.popleft()
        try:
            copy.result()
        except ConfigError as error:
            raise ConfigError(f"tensor {name} {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._pool.shutdown(cancel_futures=True)


class Place(NamedTuple):
    """Destination of a checkpoint tensor."""

    name: str
    """Name of the parameter."""
    parameter: WeightParameter
    section: int | None
    first: bool
    """True if no earlier tensor was written to this place."""

    def misfit(self, name: str, tensor: Tensor) -> str | None:
        """Returns why the tensor of that name does not fit here by its shape or dtype, None if it fits. Its values are
        not read.
        """
        try:
            self.parameter.fit(tensor, self.section)
        except ConfigError as error:
            return f"tensor {name} {error}"
        return None


class Matching:
    """Matches the tensors of one checkpoint, by name, with the parameters of a model, and reports what is left over."""

    def __init__(self, model: CheckpointModel, parameters: Mapping[str, WeightParameter]) -> None:
        """`parameters`: the model's own, or their layouts."""
        self._names = model.weight_names()
        self._ignores = model.ignores
        self._parameters = parameters
        self._missing = {(name, i) for name, parameter in parameters.items() for i in range(len(parameter.sections))}
        self._unknown: list[str] = []
        self._examples: dict[str, tuple[str, str]] = {}
        """Outermost module of ours -> one of its parameters, and the name of a checkpoint's tensor for that."""

    def place(self, name: str) -> Place | None:
        """Returns the place of the tensor of that name; None if the model does not know it."""
        target = self._names.target(name)
        parameter = self._parameters.get(target.parameter)
        if parameter is None or (target.section or 0) >= len(parameter.sections):
            self._unknown.append(name)
            return None
        self._examples.setdefault(target.parameter.partition(".")[0], (target.parameter, name))
        sections = range(len(parameter.sections)) if target.section is None else (target.section,)
        found = {(target.parameter, i) for i in sections}
        first = found <= self._missing
        self._missing -= found
        return Place(target.parameter, parameter, target.section, first)

    def lacking(self) -> list[str]:
        """Returns a line of text if some parameter, or a part of it, got no tensor."""
        missing = [
            self._prefix(name) + self._names.sections(name, len(self._parameters[name].sections))[section]
            for name, section in sorted(self._missing)
        ]
        return [f"the checkpoint lacks tensors for {listed(missing)}"] if missing else []

    def _prefix(self, parameter: str) -> str:
        """Returns what stands before the name of a tensor for this parameter in this checkpoint, by its neighbours."""
        module = parameter.partition(".")[0]
        if module not in self._examples and module not in HEADS:
            module = next((each for each in self._examples if each not in HEADS), module)
        if module not in self._examples:
            return ""
        known, theirs = self._examples[module]
        names = self._names.sections(known, len(self._parameters[known].sections))
        return next((theirs.removesuffix(name) for name in names if theirs.endswith(name)), "")

    def unknown(self) -> list[str]:
        """Returns a line of text if some tensor belongs to no parameter."""
        unknown = [name for name in self._unknown if not self._ignores(name)]
        return [f"the checkpoint has tensors that the model does not know: {listed(unknown)}"] if unknown else []


def first_few(problems: list[str]) -> list[str]:
    """Returns the first problems, and a line about how many more there are."""
    more = len(problems) - MAX_PROBLEMS
    return [*problems[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]


def listed(names: list[str]) -> str:
    """Returns the first few names, and how many more."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - MAX_NAMES
    return ", ".join(distinct[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


class DecodesRows(Protocol):
    """Computes the layers of decode steps."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Computes [W, hidden_size] hidden states after the last norm, for the tokens that the batch wants."""
        ...


class NotCompiled(Exception):
    """A model's layers are not compiled. The message is the reason, a clause without a dot."""


class TokenModel(CheckpointModel):
    """A model whose attention reads KV pages, and which computes logits from hidden states."""

    @abstractmethod
    def forward(self, batch: ForwardBatch) -> Tensor:
        """Computes [W, hidden_size] hidden states after the last norm, for the tokens that the batch wants."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Computes logits, [N, hidden_size] -> [N, vocab_size]."""

    @abstractmethod
    def attention_specs(self) -> list[AttentionSpec]:
        """Returns a spec for each attention layer of this rank, by layer. The KV cache is made for these."""

    @abstractmethod
    def state_specs(self) -> list[StateSpec]:
        """Returns a spec for each layer of this rank that keeps a state for each request, by layer."""

    @abstractmethod
    def workspace(self, max_tokens: int) -> int:
        """Returns the bytes that a step of so many tokens needs inside its layers; small amounts may be left out."""

    def described(self) -> DenseDecoder:
        """Returns the model as plain tensors, which are its own: weight updates change them. A later call may return
        other tensors, but those of the last call stay the model's until its weights are released.

        Raises CannotDescribe.
        """
        raise CannotDescribe("its class does not say what its layers compute")

    def compiled(self, backend: str) -> DecodesRows:
        """Returns the layers for decode steps as code of this backend of torch.compile. Raises NotCompiled."""
        raise NotCompiled(OWN_KERNELS)
