"""Results of an evaluation: the score by task, the answers in a file, and the agreement of two files."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mysglang.bench.refused import Failed


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer beside the right one."""

    task: str
    prompt: str
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        """True if the answer is exactly the expected one."""
        return self.answer == self.expected


def scores(results: Iterable[Scored]) -> dict[str, float]:
    """Returns the share of right answers by task."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        by_task[result.task].append(result.right)
    return {task: sum(right) / len(right) for task, right in by_task.items()}


def table(results: Sequence[Scored]) -> str:
    """Returns the scores in lines, the total last."""
    lines = [f"{task:<14} {100 * score:6.1f} %" for task, score in scores(results).items()]
    return "\n".join([*lines, f"{'total':<14} {100 * total(results):6.1f} %   ({len(results)} items)"])


def total(results: Sequence[Scored]) -> float:
    """Returns the share of right answers over all items; 0 when there are none."""
    return sum(result.right for result in results) / max(1, len(results))


def save(results: Iterable[Scored], path: Path) -> None:
    """Writes one JSON object per line for each result. Raises Failed."""
    try:
        path.write_text("".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in results), encoding="utf-8")
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}.") from None


def load(path: Path) -> list[Scored]:
    """Read a file that `save` wrote. Raises Failed."""
    try:
        return [Scored(**json.loads(line)) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError):
        raise Failed(f"{path} does not hold answers that --save-answers wrote.") from None


def agreement(one: Sequence[Scored], other: Sequence[Scored], shown: int = 5) -> tuple[float, str]:
    """Returns the share of equal answers, and the first differences in words. Raises ValueError when the prompts
    differ.
    """
    if [r.prompt for r in one] != [r.prompt for r in other]:
        raise ValueError(
            "The two files hold answers to different prompts; make both with the same --per-task and --seed."
        )
    apart = [(a, b) for a, b in zip(one, other, strict=True) if a.answer != b.answer]
    share = 1 - len(apart) / max(1, len(one))
    lines = [f"{a.task}: {a.prompt[-80:]!r}\n  A {a.answer!r}\n  B {b.answer!r}" for a, b in apart[:shown]]
    return share, "\n".join([*lines, f"agreement {100 * share:.2f} % ({len(apart)} of {len(one)} differ)"])
