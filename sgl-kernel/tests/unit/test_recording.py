"""Recordings: a replay computes again from the present values of its tensors, and repeats nothing else of the step."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mysgl_kernel.cpu import rows
from mysgl_kernel.cpu.recording import CannotRecord, Recording, recorded, recorded_whole

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "new values": lambda x, y: x + y,
    "several results": lambda x, y: torch.cat(x.max(dim=1)) * y.sum(),
    "a view of new values": lambda x, y: (x @ y).view(-1)[3:9],
    "values in a tensor that was not filled": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "in place": lambda x, y: x.mul(2).add_(y).t(),
    "into a view": lambda x, y: torch.zeros(8, 8).index_copy_(0, torch.arange(4), x[:4]).relu_() + y,
    "a list of views": lambda x, y: torch.stack(x.split(2)).sum(0) - y.chunk(4)[1],
    "reshaped, with and without a copy": lambda x, y: x.t().reshape(-1) + y.reshape(-1),
    "constants": lambda x, y: torch.where(x > torch.tensor(0.5), x, torch.ones_like(y)),
    "another dtype": lambda x, y: (x.bfloat16() @ y.bfloat16()).float(),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_replays_compute_anew(step: Callable[[Tensor, Tensor], Tensor]) -> None:
    with torch.inference_mode():
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        with Recording() as recording:
            left = step(x, y)
        assert torch.equal(left, step(x, y))
        for _ in range(3):
            x.normal_()
            y.normal_()
            recording.replay()
            assert torch.equal(left, step(x, y))


def test_kernels_are_called_again_with_their_arguments() -> None:
    if not rows.available():
        pytest.skip("neither built nor can be compiled here")
    with torch.inference_mode():
        x, weight = torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()
        with Recording() as recording:
            left = rows.rms_norm(x, weight, 1e-6)
        x.normal_()
        recording.replay()
        assert torch.equal(left, rows.rms_norm(x, weight, 1e-6))
        assert len(recording) == 1  # not what makes room for the result


def test_a_function_that_looks_at_values_is_called_again_whole() -> None:
    @recorded_whole
    def of_rows(x: Tensor, rows: Tensor) -> Tensor:
        return torch.stack([x[row].mul_(2) for row in rows.tolist()]).sum(0)

    with torch.inference_mode():
        x, rows = torch.ones(4, 3), torch.tensor([0, 2])
        with Recording() as recording:
            left = of_rows(x, rows) + 1
        assert len(recording) == 2 and recording.nbytes == 2 * left.nbytes
        rows.copy_(torch.tensor([1, 2]))
        recording.replay()
    assert x[:, 0].tolist() == [2, 2, 4, 1] and left.tolist() == [7, 7, 7]


class Ops(TorchDispatchMode):
    """Notes the names of torch's ops."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_results_are_computed_where_they_are() -> None:
    """A replay makes no tensors for them."""
    with torch.inference_mode():
        x, y = torch.randn(4, 6).t(), torch.randn(6, 4).bfloat16()
        with Recording() as recording:
            left = torch.cat([-x, (x * y) + 1, y.float()])
        x.normal_()
        y.normal_()
        with Ops() as replayed:
            recording.replay()
        assert torch.equal(left, torch.cat([-x, (x * y) + 1, y.float()]))
    assert replayed.names == ["aten::neg.out", "aten::mul.out", "aten::add.out", "aten::copy_", "aten::cat.out"]


def test_views_and_room_cost_nothing() -> None:
    with torch.inference_mode():
        x = torch.randn(8, 8)
        with Recording() as recording:
            x.view(64)[3:].new_empty(7)
            torch.empty(5)
            x.t().split(2)
        assert len(recording) == 0


def test_what_is_in_use_stays() -> None:
    """Memory of the step belongs to the recording, so that no other tensor gets it."""
    with torch.inference_mode():
        x = torch.randn(100_000)
        with Recording() as recording:
            left = (x + 1) * 2
        others = [torch.full((100_000,), 5.0) for _ in range(4)]
        recording.replay()
        assert torch.equal(left, (x + 1) * 2)
        assert recording.nbytes == 2 * x.nbytes
        assert all(bool((other == 5).all()) for other in others)


@pytest.mark.parametrize("look", [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x[x > 0]])
def test_looking_at_values_is_refused(look: Callable[[Tensor], object]) -> None:
    with torch.inference_mode(), pytest.raises(CannotRecord, match="looks at values"), Recording():
        look(torch.randn(4, 4))


def test_other_threads_and_other_times_are_not_recorded() -> None:
    called: list[int] = []
    kernel = recorded(called.append)
    kernel(1)
    with Recording() as recording:
        kernel(2)
        other = threading.Thread(target=kernel, args=(3,))
        other.start()
        other.join()
    kernel(4)
    recording.replay()
    assert called == [1, 2, 3, 4, 2]
