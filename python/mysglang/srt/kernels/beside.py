"""Computations beside others, in captured steps on CUDA: kernels of one run where those of the other leave the device
idle. Elsewhere they run one after another.

A graph knows which of its kernels wait for each other. Outside of graphs the host would take longer to tell the device
so than the device gains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Computation = Callable[[], Tensor]
LEAST_ROWS, MOST_ROWS = 24, 512
"""Products of more rows fill the device by themselves. With fewer, kernels are so short that each begins before the one
before it ends, which it cannot do where two come together.
"""


def beside(x: Tensor, computation: Computation) -> Computation:
    """Starts a computation of x [N, ...], whose kernels may run beside those that are launched next. Returns a function
    that has later kernels wait for its result, and returns the result.
    """
    # Under Triton's interpreter there is no stream. It is made at the first step, since none can be made in a capture.
    side = _side_stream(x.device) if x.is_cuda else None
    worthwhile = LEAST_ROWS <= len(x) <= MOST_ROWS
    if side is None or not worthwhile or not torch.cuda.is_current_stream_capturing():
        found = computation()
        return lambda: found
    main = torch.cuda.current_stream(x.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        found = computation()

    # What either stream leaves is freed behind the next wait of the other one, so no memory is used twice at once.
    def join() -> Tensor:
        main.wait_stream(side)
        return found

    return join


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream of what runs beside a step. cuBLAS has its handle and its workspace for it."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
        torch.mm(one, one)
    stream.synchronize()
    return stream
