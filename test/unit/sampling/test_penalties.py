"""PenaltyTable against the formulas, token by token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mysglang.srt.sampling import penalties as penalties_module
from mysglang.srt.sampling.penalties import Penalties, PenaltyTable

VOCAB = 12


def longs(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def make_table(prompts: dict[int, list[int]], outputs: dict[int, list[int]]) -> PenaltyTable:
    table = PenaltyTable(VOCAB, torch.device("cpu"))
    table.reserve(max(prompts) + 1)
    pairs = [
        (longs(*(line for line, ids in texts.items() for _ in ids)), longs(*(i for ids in texts.values() for i in ids)))
        for texts in (prompts, outputs)
    ]
    table.reset(longs(*prompts), *pairs)
    return table


def expected(logits: Tensor, prompt: list[int], output: list[int], freq: float, pres: float, rep: float) -> Tensor:
    values = logits.tolist()
    for token in range(VOCAB):
        values[token] -= freq * output.count(token) + pres * (token in output)
        if token in prompt or token in output:
            values[token] = values[token] / rep if values[token] > 0 else values[token] * rep
    return torch.tensor(values)


@pytest.mark.parametrize("strengths", [(0.5, 0.0, 1.0), (0.0, 1.5, 1.0), (0.0, 0.0, 1.3), (-1.0, 0.7, 0.8)])
def test_formulas(strengths: tuple[float, float, float]) -> None:
    prompts, outputs = {0: [1, 2, 2], 3: [5]}, {0: [2, 4, 4, 4], 3: []}
    table = make_table(prompts, outputs)
    logits = torch.randn(3, VOCAB)
    changed = logits.clone()
    columns = [torch.full((2,), strength) for strength in strengths]
    table.apply(changed, Penalties(longs(2, 0), longs(0, 3), *columns))
    assert torch.equal(changed[1], logits[1])
    for row, line in ((2, 0), (0, 3)):
        assert torch.allclose(changed[row], expected(logits[row], prompts[line], outputs[line], *strengths))


def test_counting_is_like_starting_with_the_tokens() -> None:
    counted = make_table({0: [1], 1: [2]}, {0: [3], 1: []})
    for tokens in ((4, 5), (4, -1), (3, 2)):
        counted.count(longs(0, 1), longs(*tokens))
    started = make_table({0: [1], 1: [2]}, {0: [3, 4, 4, 3], 1: [5, 2]})
    penalties = Penalties(longs(0, 1), longs(0, 1), torch.ones(2), torch.ones(2), torch.full((2,), 1.7))
    a, b = torch.ones(2, 2, VOCAB)
    counted.apply(a, penalties)
    started.apply(b, penalties)
    assert torch.equal(a, b)
    assert not torch.equal(a, torch.ones(2, VOCAB))


def test_growth_and_reset_keep_other_lines() -> None:
    table = make_table({0: [1]}, {0: [2, 2]})
    table.reserve(100)
    table.reset(longs(50), (longs(50), longs(7)), (longs(), longs()))
    table.reset(longs(50), (longs(50), longs(8)), (longs(), longs()))
    logits = torch.zeros(2, VOCAB)
    table.apply(logits, Penalties(longs(0, 1), longs(0, 50), torch.ones(2), torch.zeros(2), torch.ones(2)))
    assert logits[0].tolist() == [0, 0, -2] + [0] * 9
    assert not logits[1].any()


class LargestMade(TorchDispatchMode):
    """Notes the bytes of the largest new tensor with memory of its own."""

    nbytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
            self.nbytes = max(self.nbytes, made.nbytes)
        return made


def test_many_rows_take_no_more_memory_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of thousands of penalised rows over a large vocabulary must not need gigabytes beside its logits."""
    rows = 50
    table = make_table({line: [line % VOCAB] for line in range(rows)}, {line: [3] for line in range(rows)})
    strengths = [torch.rand(rows, generator=torch.Generator().manual_seed(i)) + 0.5 for i in range(3)]
    penalties = Penalties(torch.randperm(rows), torch.arange(rows), *strengths)
    at_once, in_parts = torch.randn(rows, VOCAB).expand(2, -1, -1).clone()
    table.apply(at_once, penalties)
    monkeypatch.setattr(penalties_module, "CHUNK_BYTES", 4 * VOCAB * 7)
    with LargestMade() as largest:
        table.apply(in_parts, penalties)
    assert torch.equal(at_once, in_parts)
    # Indices take eight bytes for each row.
    assert 0 < largest.nbytes <= max(4 * VOCAB * 7, 8 * rows)
