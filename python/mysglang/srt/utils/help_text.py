"""HelpFormatter: argparse's help, whose lines are never broken inside the name of a flag."""

from __future__ import annotations

import argparse
import textwrap


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of descriptions and examples as they are. A line of an option's help breaks at spaces only, so
    that a reader can copy and search flags such as --model-path.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)
