"""Writes the exam of the embedded model: `PYTHONPATH=python:scripts python -m tiny_world --out FILE`.

A line of JSON for each held-out question; the same arguments write the same file. `mysglang eval tiny --exam FILE` asks
them. Without --out the exam of the package is written again.
"""

import argparse
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from mysglang.eval.exam import EXAM_FILE, compact_json
from tiny_world.world import held_out_items

PER_TASK = 80
"""Questions of each task in the package's own exam."""


def exam_text(per_task: int = PER_TASK, seed: int = 0) -> str:
    """The file as a text, `per_task` lines for each task."""
    return "".join(f"{compact_json(_plain(item))}\n" for item in held_out_items(per_task, seed))


def _plain(value: Any) -> Any:
    """Records as objects without the fields that have their defaults."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _plain(part) for field, part in pairs if field.default is MISSING or part != field.default}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Write questions for the embedded model.")
    parser.add_argument("--out", type=Path, default=EXAM_FILE, metavar="FILE")
    parser.add_argument("--per-task", type=int, default=PER_TASK, help="Questions of each task.")
    parser.add_argument("--seed", type=int, default=0, help="Which questions.")
    args = parser.parse_args()
    args.out.write_text(exam_text(args.per_task, args.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
