"""The gates of the serving tests shut on this device: waits and compilers are noticed, and what steps do is not."""

import subprocess
import sys

from fixtures.server_process import REPOSITORY, python_path

PROGRAM = """
import subprocess, torch
from fixtures.gates import GpuGates
from mysglang.srt.kernels.cuda.sampling import greedy_tokens
x, host = torch.ones(4, 100, device="cuda"), torch.empty(4, 100, pin_memory=True)
greedy_tokens(x)
copied = torch.cuda.Event()
gates = GpuGates()
gates.close()
greedy_tokens(x)
x.copy_(host, non_blocking=True)
host.copy_(x, non_blocking=True)
copied.record()
copied.synchronize()
for wrong in (
    lambda: x.sum().item(),
    lambda: x.nonzero(),
    lambda: x.cpu(),
    lambda: torch.ones(3).to("cuda"),
    lambda: greedy_tokens(x.half()),
    lambda: subprocess.run(["true"]),
):
    try:
        wrong()
    except RuntimeError as error:
        print(str(error).splitlines()[0][:60])
with gates.ajar():
    x.sum().item()
    greedy_tokens(x.half())
"""


def test_what_passes_raises() -> None:
    environment = {"PYTHONPATH": python_path("python", "sgl-kernel/python", "test"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 6, told
    assert all("synchronizing CUDA operation" in line for line in told[:4])
    assert told[4].startswith("after start-up, this scheduler compiled _greedy_part_kernel")
    assert told[5].startswith("after start-up, this scheduler started a process")
