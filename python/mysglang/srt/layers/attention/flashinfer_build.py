"""FlashInfer's kernels for prompts: which of them some layers need, which are not compiled yet, how to compile them.

Otherwise FlashInfer compiles a kernel when a wrapper is first planned, which takes 17 s for FlashAttention 2 and 51 s
for FlashAttention 3 on the 16 cores beside an H200. It finds what was compiled here, in the same folder and under the
same lock.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from filelock import FileLock
from flashinfer.jit.attention.modules import gen_batch_prefill_module

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.layers.attention.flashinfer_prefill import backend_for

NO_POSITIONS = 0
"""FlashInfer's PosEncodingMode.NONE: queries and keys come rotated."""

LAST_LINES = 25
MORTAL = (
    sys.executable,
    "-c",
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Runs a command that Linux asks to end when the thread that started it ends (PR_SET_PDEATHSIG). ninja then ends its
compilers.
"""


def missing(specs: Sequence[AttentionSpec], dtype: torch.dtype, stored: torch.dtype, device: torch.device) -> list[Any]:
    """Returns FlashInfer's description (`JitSpec`) of each kernel that prompts of such layers need and that is not
    compiled.
    """
    modules = {}
    for spec in specs:
        module = gen_batch_prefill_module(
            backend_for(spec, stored, device),
            dtype,
            stored,
            dtype,
            torch.int32,
            spec.head_dim,
            spec.head_dim,
            NO_POSITIONS,
            spec.window is not None,
            spec.logit_cap > 0,
            False,
        )
        modules[module.name] = module
    return [module for module in modules.values() if not module.is_compiled]


def compile_all(modules: Sequence[Any]) -> None:
    """Compile these in turn. Raises RuntimeError with the compiler's last lines."""
    for module in modules:
        with FileLock(module.lock_path, thread_local=False):
            module.write_ninja()
            # FlashInfer's own call would leave compilers behind when this process ends.
            command = (*MORTAL, "ninja", "-C", str(module.build_dir), "-f", str(module.ninja_path))
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
            raise RuntimeError(f"ninja ended with status {done.returncode}.\n{last}")
