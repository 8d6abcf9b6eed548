"""`python -m mysglang.profiler`: SGLang's name for `mysglang profile`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mysglang.bench.refused import run_tool
from mysglang.cli.profile import main

PROG = "python -m mysglang.profiler"


def run(argv: Sequence[str]) -> int:
    return main(argv, PROG)


if __name__ == "__main__":
    sys.exit(run_tool(run))
