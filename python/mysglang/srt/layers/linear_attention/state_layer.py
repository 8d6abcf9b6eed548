"""StateLayer: a layer that keeps one state of a fixed size for each request, and how a step's tokens go through it.

ShortConvolution: the causal convolution over the newest few tokens that such layers begin with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch, StateSpec
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import Section, WeightParameter


class StateLayer(nn.Module, ABC):
    """A layer with a state for each request. The spec says what it keeps; `step` and `run` compute one token and
    several, and give the same numbers.
    """

    spec: StateSpec

    @abstractmethod
    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        """Processes one new token of each of R rows. Returns [R, …].

        inputs: [R, …] each, as `through` was given them. state: the parts of the spec, [states + 1, …] each, updated in
        place. at: [R] int64 entries of these, distinct but for rows without a state.
        """

    @abstractmethod
    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        """Processes consecutive tokens of some rows. inputs: [T, …] each, of all tokens of the step. States are copied
        out where the runs say. Returns [T, …]; tokens in no run are unspecified.
        """

    def through(self, inputs: Sequence[Tensor], batch: ForwardBatch) -> Tensor:
        """Passes all tokens of a step through the states: [T, …] each -> [T, …]. Checkpoints are copied out where the
        step says.
        """
        step = batch.states
        assert step is not None, "the step says nothing of states, and the model has some"
        state = step.store.of(self.spec.layer_id)
        if step.runs is None:
            return self.step(inputs, state, step.single)
        out = self.run(inputs, state, step.runs)
        if step.single_tokens is not None:
            at = step.single_tokens
            out[at] = self.step([each.index_select(0, at) for each in inputs], state, step.single)
        return out


class ShortConvolution(nn.Module):
    """A causal convolution over a few tokens. Weight [channels, 1, kernel], and maybe a bias, [channels]; the ops are
    in `kernels/linear_attention.py`.
    """

    def __init__(
        self, sections: tuple[Section, ...], kernel: int, context: LayerContext, *, bias: bool = False
    ) -> None:
        """`sections`: how the channels are divided among ranks."""
        super().__init__()
        channels = sum(section.size for section in sections)
        self.weight = WeightParameter((channels, 1, kernel), sections, dtype=context.dtype)
        self.bias = WeightParameter((channels,), sections, dtype=context.dtype) if bias else None

    @property
    def taps(self) -> Tensor:
        """The convolution's weights: [channels, kernel]."""
        return self.weight.squeeze(1)


def state_specs(model: nn.Module) -> list[StateSpec]:
    """Returns the spec of each layer of a model that keeps a state for each request, in the order of its modules."""
    return [module.spec for module in model.modules() if isinstance(module, StateLayer)]
