"""Says which build of torch `scripts/setup` installs on a machine without a GPU: the options for pip, on one line.

A CPU machine should not be given gigabytes of CUDA libraries, and must not be left without a server. In this order:
what pip is configured to find, if that is the CPU build; PyTorch's own index of CPU builds, if it answers; and else the
default build, with a line about its size. Run with the interpreter of the environment that torch goes to.
"""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

CPU = "constraints/cpu.txt"
DEFAULT = "constraints/cuda.txt"
"""Versions that go together where torch's default build is taken: that one asks for an exact triton."""

PYTORCH_CPU = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of CPU builds, as its installation page names it."""

PATIENCE_S = 3.0
"""Seconds in which that index must answer, in all: name, connection and page."""

SIZE = (
    "setup: no index offers torch's CPU build here, so its default build is installed. It brings several GB of CUDA "
    "libraries that this machine does not use; an index with the CPU build can be named: make setup TORCH_INDEX=URL"
)

Plan = Callable[[Sequence[str]], dict[str, Any] | None]
"""Options for pip -> what it would install, as its report says it; None if it finds nothing."""


def choose(index: str | None, plan: Plan, answers: Callable[[str], bool]) -> tuple[str, ...]:
    """The options for pip. `index`: one more index to look at, if the user has named one."""
    print("setup: looking for torch's CPU build", file=sys.stderr)
    named = ("--extra-index-url", index) if index else ()
    if is_cpu_build(plan(("-c", CPU, *named))):
        return ("-c", CPU, *named)
    own = ("--extra-index-url", PYTORCH_CPU)
    if answers(PYTORCH_CPU) and is_cpu_build(plan(("-c", CPU, *own))):
        return ("-c", CPU, *own)
    print(SIZE, file=sys.stderr)
    return ("-c", DEFAULT, *named)


def is_cpu_build(report: dict[str, Any] | None) -> bool:
    """True if the one package in the report needs no CUDA libraries on this machine."""
    if report is None:
        return False
    (torch,) = report["install"]
    return needs_no_cuda(torch["metadata"].get("requires_dist", []))


def needs_no_cuda(requirements: Iterable[str]) -> bool:
    """True if none of these requirements is a CUDA library, on this machine."""
    from pip._vendor.packaging.requirements import Requirement

    needs = [Requirement(line) for line in requirements]
    names = [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return not any(name.startswith(("nvidia-", "cuda-")) for name in names)


def installed() -> tuple[str, ...] | None:
    """The options that keep the torch of this environment, if it is one that would be chosen."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    constraints = CPU if needs_no_cuda(torch.requires or []) else DEFAULT
    pinned = f"torch=={torch.version.partition('+')[0]}" in Path(constraints).read_text().splitlines()
    return ("-c", constraints) if pinned else None


def plan_with_pip(options: Sequence[str]) -> dict[str, Any] | None:
    """Ask pip what it would install as torch."""
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--dry-run"]
    command = [*pip, "--ignore-installed", "--no-deps", "--report", "-", "torch", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def answers(index: str, patience_s: float = PATIENCE_S) -> bool:
    """True if the index has a page for torch and answers in time."""
    found: list[int] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index}/torch/", timeout=patience_s) as page:
                found.append(page.status)
        except (OSError, ValueError):
            return  # no network, no such name, or another page

    # In a thread: looking up a name takes as long as it takes.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience_s)
    return found == [200]


if __name__ == "__main__":
    assert Path(CPU).is_file(), "run at the top of the repository"
    index = sys.argv[1] if len(sys.argv) > 1 else None
    print(*(installed() or choose(index, plan_with_pip, answers)))
