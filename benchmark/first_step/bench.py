"""Time from the call of `Engine.generate` to the launch of the first step, and to the last prefill step.

    python benchmark/first_step/bench.py [--rounds 15] [--case NAME] [--parts]

A whole engine, with real processes and sockets between them, around a device that computes nothing and takes as long as
a GPU would (`counting_scheduler.py`), so that steps can be counted, and how long the device stood idle between them.
Each case is asked for once in a round, cases in turn, the prefix cache empty. Times are medians in milliseconds. Half a
minute; one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from counting_scheduler import CONTEXT, MODULE, STEP_NS, TOKEN_NS
from shapes import write_shape

from mysglang.srt.entrypoints import engine as engine_module
from mysglang.srt.entrypoints.engine import Engine
from mysglang.srt.entrypoints.launcher import ChildModules, Subprocesses
from mysglang.srt.messages.channels import AsyncPush
from mysglang.srt.server_args import ServerArgs

FOLDER = str(Path(__file__).resolve().parent)

GOAL_MS = 8.0
"""Until the first launch for 256 prompts of 2176 tokens."""
STEP_TOKENS = 8192
"""Prompt tokens of a step."""
OUTPUT = 2
"""Tokens of each answer: what comes after the prompts is not of interest here."""
VOCAB = 30000
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "mix",
    "potions",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the arguments of `generate`."""

    asked: dict[str, Any]
    new_tokens: int | None
    """Prompt tokens, with shared ones counted once; None where the tokenizer decides."""


def cases() -> dict[str, Case]:
    """Name -> case, drawn with seed 0 in this order."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(10, VOCAB) for _ in range(count)]

    def of_ids(prompts: list[list[int]], shared: int = 0) -> Case:
        return Case({"input_ids": prompts}, sum(map(len, prompts)) - shared * (len(prompts) - 1))

    made = {
        "1x128": of_ids([ids(128)]),
        "64x128": of_ids([ids(128) for _ in range(64)]),
        "64x1024": of_ids([ids(1024) for _ in range(64)]),
        "32x4096": of_ids([ids(4096) for _ in range(32)]),
        "256 mixed": of_ids([ids(rng.randint(100, 1024)) for _ in range(256)]),
    }
    common = ids(2048)
    made["256x(2048+128)"] = of_ids([common + ids(128) for _ in range(256)], 2048)
    texts = [" ".join(rng.choices(WORDS, k=400)) for _ in range(256)]
    made["256 texts"] = Case({"prompt": texts}, None)
    return made


class BenchEngine(Engine):
    """An engine with the counting scheduler."""

    def __init__(self, log: Path, model: Path) -> None:
        os.environ["FIRST_STEP_LOG"] = str(log)
        # Its module is found where this one is.
        os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER, *filter(None, [os.environ.get("PYTHONPATH")])])
        tiny = ServerArgs.from_kwargs().model.model_path
        super().__init__(
            model_path=str(model),
            tokenizer_path=tiny,
            load_format="dummy",
            context_length=CONTEXT,
            chunked_prefill_size=STEP_TOKENS,
            decode_wait_tokens=32768,  # what it is on a GPU
            device="cpu",
        )


def with_our_scheduler(args: ServerArgs) -> Subprocesses:
    return Subprocesses(args, ChildModules(scheduler=MODULE))


class Sends:
    """When the front handed messages to the socket, in nanoseconds."""

    def __init__(self) -> None:
        self.at: list[int] = []
        flush = AsyncPush._flush

        def logged(push: AsyncPush[Any]) -> None:
            if push._waiting:
                self.at.append(time.perf_counter_ns())
            flush(push)

        AsyncPush._flush = logged


def once(engine: BenchEngine, log: Path, sends: Sends, case: Case) -> dict[str, float]:
    """One call; what was when, in milliseconds since it."""
    while not engine.flush_cache().success:
        time.sleep(0.001)  # the step in flight after the last answers is not done
    log.write_text("")
    sends.at.clear()
    params = {"max_new_tokens": OUTPUT, "ignore_eos": True, "temperature": 0.0}
    start = time.perf_counter_ns()
    engine.generate(**case.asked, sampling_params=params)
    end = time.perf_counter_ns()
    events = [line.split() for line in log.read_text().splitlines()]
    took = [int(at) for at, what, *_ in events if what == "took"]
    every = [(int(at), int(rest[0])) for at, what, *rest in events if what == "step"]
    steps = [step for step in every if step[1]]
    computed = sum(tokens for _, tokens in steps)
    # Prompts that begin alike by chance share a token.
    assert case.new_tokens is None or 0 <= case.new_tokens - computed < len(steps), "the steps hold other tokens"
    return {
        "sends": float(len(sends.at)),
        "first_sent": (sends.at[0] - start) / 1e6,
        "last_sent": (sends.at[-1] - start) / 1e6,
        "first_taken": (took[0] - start) / 1e6,
        "first_step": (steps[0][0] - start) / 1e6,
        "first_step_tokens": float(steps[0][1]),
        "prompt_steps": float(len(steps)),
        "idle": _idle(every) / 1e6,
        "prompts_done": (_end(every) - start) / 1e6,
        "answered": (end - start) / 1e6,
    }


def _prompt_phase(steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """When each step was launched and when the device had done it, up to the last step of prompts."""
    free = 0
    last = max(number for number, (_, tokens) in enumerate(steps) if tokens)
    for at, tokens in steps[: last + 1]:
        free = max(free, at) + STEP_NS + tokens * TOKEN_NS
        yield at, free


def _end(steps: Sequence[tuple[int, int]]) -> int:
    """When the last step of prompts was done."""
    return max(end for _, end in _prompt_phase(steps))


def _idle(steps: Sequence[tuple[int, int]]) -> int:
    """How long the device waited for another step before the last one of prompts."""
    spans = list(_prompt_phase(steps))
    return sum(max(0, at - end) for (at, _), (_, end) in zip(spans[1:], spans, strict=False))


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", help="this one alone")
    options = parser.parse_args()
    engine_module.Subprocesses = with_our_scheduler
    asked = {name: case for name, case in cases().items() if options.case in (None, name)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in asked}
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "events"
        sends = Sends()
        with BenchEngine(log, write_shape("qwen3-0.6b", Path(name))) as engine:
            for case in asked.values():
                once(engine, log, sends, case)
            for _ in range(options.rounds):
                for case_name, case in asked.items():
                    found[case_name].append(once(engine, log, sends, case))
    results = {name: medians(rounds) for name, rounds in found.items()}
    for name, row in results.items():
        print(f"{name:16s} " + "  ".join(f"{part} {value:g}" for part, value in row.items()))
    name = next(reversed([name for name in results if "text" not in name] or list(results)))
    firsts = [one["first_step"] for one in found[name]]
    result = {
        "what": f"from the call of generate to the launch of the first step, {name}, ms",
        "median": results[name]["first_step"],
        "spread": [round(min(firsts), 2), round(max(firsts), 2)],
        "goal": GOAL_MS,
        "reached": results[name]["first_step"] <= GOAL_MS,
        "rounds": options.rounds,
        "least": {name: round(min(one["first_step"] for one in rounds), 2) for name, rounds in found.items()},
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "cases": results,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
