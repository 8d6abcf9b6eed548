"""Lists of pairs by expert, made one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SortCase:
    """Random choices of a few favourites among the experts, or of all alike."""

    pairs: int
    experts: int
    rows: int
    favourites: int | None = None

    def arguments(self, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
        """Returns the arguments of a sort; all that it writes has a mark."""
        torch.manual_seed(self.pairs)
        ids = torch.randint(self.favourites or self.experts, (self.pairs,), dtype=torch.int32)
        most = min(self.pairs, self.experts + self.pairs // self.rows)
        outputs = (torch.full((size,), -7, dtype=torch.int32, device=device) for size in (most * self.rows, most, 1))
        return (ids.to(device), *outputs, self.experts, self.rows)

    def check(self, ids: Tensor, order: Tensor, block_experts: Tensor, used: Tensor) -> None:
        """Compare a sorted list with one that is made pair by pair."""
        expected: list[int] = []
        owners: list[int] = []
        for expert in range(self.experts):
            own = [pair for pair, chosen in enumerate(ids.tolist()) if chosen == expert]
            own += [self.pairs] * (-len(own) % self.rows)
            expected += own
            owners += [expert] * (len(own) // self.rows)
        assert used.item() == len(owners)
        assert order[: len(expected)].tolist() == expected and block_experts[: len(owners)].tolist() == owners
        assert (order[len(expected) :] == -7).all() and (block_experts[len(owners) :] == -7).all()


SORT_CASES = {
    "a few": SortCase(40, 12, 4),
    "more experts than pairs": SortCase(9, 128, 16),
    "favourites": SortCase(500, 64, 16, favourites=3),
    "turns that are not full": SortCase(1000, 100, 8),
    "one expert": SortCase(77, 1, 16),
}
