"""Pipeline stages: which layers of a model each stage has, and what is sent from stage to stage.

    stage 0   embedding, layers 0 … a     hidden states ──▶   stage 1   layers a + 1 … n, norm, projection to logits
                                        ◀── tokens

Each stage runs every step, in the same order. The last one chooses the tokens and tells all others. `WholeModel` is the
null stage: it has every layer, and sends nothing. `PipelineStage` is one of several, over process groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

from mysglang.srt.distributed.process_group import join
from mysglang.srt.distributed.ranks import Place, RankContext
from mysglang.srt.utils.even_split import even_run


class Stage(Protocol):
    """A run of consecutive layers, and the links to the other stages."""

    @property
    def first(self) -> bool:
        """True if this stage has the embedding."""
        ...

    @property
    def last(self) -> bool:
        """True if this stage has the last norm and the projection to logits, and so chooses the tokens."""
        ...

    def layers(self, count: int) -> range:
        """Returns the indices, out of 0 … count - 1, of this stage's layers."""
        ...

    def send(self, stream: Tensor) -> None:
        """Sends a step's hidden states to the next stage. Returns before they have arrived; `stream` must not change
        any more.
        """
        ...

    def receive(self, stream: Tensor) -> Tensor:
        """Receives the next hidden states from the previous pipeline stage into `stream`, which gives their shape and
        dtype, and returns it.
        """
        ...

    def send_tokens(self, tokens: Tensor) -> None:
        """On the last stage: sends a step's tokens, [S] int64, to all other stages. Returns before they have
        arrived.
        """
        ...

    def receive_tokens(self, tokens: Tensor) -> Tensor:
        """On every other stage: receives the next tokens of the last stage into `tokens`, which gives their number."""
        ...

    def smallest(self, values: Sequence[int]) -> list[int]:
        """Returns elementwise minimum of `values` over all stages. Every stage gives the same number of values."""
        ...


class WholeModel:
    """A null object for a model without pipeline stages: every layer is on this rank."""

    first = True
    last = True

    def layers(self, count: int) -> range:
        return range(count)

    def send(self, stream: Tensor) -> None:
        raise AssertionError("there is no stage after this one")

    def receive(self, stream: Tensor) -> Tensor:
        raise AssertionError("there is no stage before this one")

    def send_tokens(self, tokens: Tensor) -> None:
        """Does nothing: there is no other stage."""

    def receive_tokens(self, tokens: Tensor) -> Tensor:
        raise AssertionError("this stage chooses the tokens")

    def smallest(self, values: Sequence[int]) -> list[int]:
        return list(values)


WHOLE_MODEL = WholeModel()


class Sending(Protocol):
    """A tensor that is being sent."""

    def wait(self) -> None:
        """Waits until the tensor is sent. Raises PeerLost if the other rank is gone."""
        ...


class Link(Protocol):
    """The members of a group, one stage each, to which tensors can be sent one by one."""

    def send(self, x: Tensor, to: int) -> Sending:
        """Begin to send x to that member. x must not change until it is sent."""
        ...

    def receive(self, x: Tensor, source: int) -> Tensor:
        """Receive the next tensor of that member into x."""
        ...

    def smallest(self, values: Sequence[int]) -> list[int]: ...


UNDER_WAY = 8
"""Tensors on their way before the oldest is waited for. Each step sends one to each stage, and a stage is never so many
steps ahead of another."""


class PipelineStage:
    """Implements `Stage` as one of several."""

    def __init__(self, place: Place, forward: Link, back: Link) -> None:
        """`forward` carries hidden states, `back` tokens. They are separate because a device executes what is queued on
        one link in order: tokens would wait behind hidden states that no stage receives before it has these tokens.
        """
        self.first = place.rank == 0
        self.last = place.rank == place.size - 1
        self._place = place
        self._forward = forward
        self._back = back
        self._sent: deque[Sending] = deque()

    def layers(self, count: int) -> range:
        # The first stages have one more, if any: the last one has the projection to logits.
        return even_run(count, self._place.rank, self._place.size)

    def send(self, stream: Tensor) -> None:
        self._keep(self._forward.send(stream, self._place.rank + 1))

    def receive(self, stream: Tensor) -> Tensor:
        return self._forward.receive(stream, self._place.rank - 1)

    def send_tokens(self, tokens: Tensor) -> None:
        # The caller may change the tokens afterwards.
        tokens = tokens.clone()
        for stage in range(self._place.rank):
            self._keep(self._back.send(tokens, stage))

    def receive_tokens(self, tokens: Tensor) -> Tensor:
        return self._back.receive(tokens, self._place.size - 1)

    def smallest(self, values: Sequence[int]) -> list[int]:
        return self._back.smallest(values)

    def _keep(self, sending: Sending) -> None:
        self._sent.append(sending)
        while len(self._sent) > UNDER_WAY * self._place.size:
            self._sent.popleft().wait()


JoinStages: TypeAlias = Callable[[RankContext], Stage]
"""Connects to the other stages, and returns the stage of this rank."""


def pipeline_stage(ranks: RankContext) -> Stage:
    """Returns the stage of this rank. Waits until its peers in the other stages have joined; call it once in a
    process.
    """
    if ranks.pp.size == 1:
        return WHOLE_MODEL
    # Each rank of a stage has a pipeline of its own with the ranks of the same number in the other stages.
    forward, back = (join(ranks, f"stages{ranks.tp.rank}-{name}", ranks.pp) for name in ("forward", "back"))
    return PipelineStage(ranks.pp, forward, back)
