"""Programmatic dependent launch: a kernel may start while the kernel before it in the stream is still draining.

A kernel that takes part calls `gdc_launch_dependents` first, may then read what no kernel writes (weights), and calls
`gdc_wait` before it touches anything else: from there on everything before it is done and visible. All this lies behind
a constexpr OVERLAP, so that the same kernel runs on older GPUs and under Triton's interpreter.
"""

from functools import cache

import torch
from torch import Tensor

HOPPER = (9, 0)


def overlapping(x: Tensor) -> dict[str, bool]:
    """Returns the keyword arguments of a launch on the device of x."""
    return {"OVERLAP": True, "launch_pdl": True} if x.is_cuda and _knows_dependents(x.device) else {"OVERLAP": False}


def has_copy_engine(x: Tensor) -> bool:
    """True if kernels on the device of x can read tiles through descriptors."""
    return x.is_cuda and _knows_dependents(x.device)


@cache
def _knows_dependents(device: torch.device) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= HOPPER
