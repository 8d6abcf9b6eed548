"""SumOfMixers: mixers of several kinds side by side in one layer (Falcon-H1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import ForwardBatch


class SumOfMixers(nn.Module):
    """The sum of what they make of the same input, each between two factors."""

    def __init__(self, mixers: Mapping[str, nn.Module], scales: Sequence[tuple[float, float]]) -> None:
        """`mixers`: by their names in a checkpoint. `scales`: of each, the factor before and the one behind it."""
        super().__init__()
        for name, mixer in mixers.items():
            self.add_module(name, mixer)
        # In a tuple, where torch does not count them again.
        self._parts = tuple((mixer, *factors) for mixer, factors in zip(mixers.values(), scales, strict=True))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, hidden_size] -> [W, hidden_size], of the wanted tokens."""
        found = [mixer(x * before, batch) * behind for mixer, before, behind in self._parts]
        total: Tensor = sum(found[1:], found[0])
        return total
