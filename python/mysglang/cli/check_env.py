"""`mysglang check-env`: what a bug report needs."""

from __future__ import annotations

from collections.abc import Sequence

from mysglang.bench.flags import ToolParser


def make_parser(prog: str) -> ToolParser:
    return ToolParser(
        prog,
        "Print versions, devices and settings of this machine, as text for a bug report.",
        examples={"{prog} > environment.txt": "Keep it in a file. It holds no keys."},
    )


def main(argv: Sequence[str], prog: str) -> int:
    make_parser(prog).parse_all(argv)
    # Imported here: it looks at devices and packages.
    from mysglang import check_env

    check_env.main()
    return 0
