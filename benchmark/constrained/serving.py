"""Cost of grammars for requests with one, and for the requests beside them: a scheduler around a device of which only
the time is simulated (`timed_device.py`).

    python benchmark/constrained/serving.py [--rows 1 64 256] [--backend xgrammar]

1. Time per token with a JSON schema and without, the same tokens, by turns. What the host does while the device is at
   work costs nothing, and what it does longer costs time, as with a GPU.
2. The longest time between two tokens of requests without grammars, while grammars are compiled beside them: large
   ones, and bombs that run into the limits. By turns with times when nothing is compiled.

Some 90 seconds. Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from links import Link
from made_up import EOS, SCHEMA, VOCAB_SIZE, document, ids_of, made_up_vocabulary, tokens_of, words_of
from made_up_tokenizer import save_tokenizer
from timed_device import TimedDevice

from mysglang.srt.constrained.compile_messages import CompilerSetup
from mysglang.srt.constrained.factory import BACKENDS
from mysglang.srt.constrained.structured_output import StructuredOutput
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.managers.scheduler_assembly import Assembled, Channels, SchedulerOptions, assemble
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.packing import pack_ids
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.prefill_planner import PrefillLimits
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.process import freeze_heap
from mysglang.srt.utils.tokenizer import Tokenizer

GOALS = {1: 1.03, 64: 1.05, 256: 1.10}
"""Time per token with a schema, as a multiple of that without."""
STALL_GOAL = 2.0
"""The longest time between two tokens while grammars are compiled, as a multiple of a step."""
PROMPT = 16
WARM_UP = 10
TURN = 25
"""Steps of one kind before it is the other's turn."""
TURNS = 12
FIRST = 2
"""Steps of a turn that do not count: the device had nothing to do before."""
BESIDE = 64
"""Requests that run while grammars are compiled."""
QUIET_S = 4.0
ANSWER = json.dumps({"type": "array", "items": SCHEMA, "minItems": 1})

LARGE = json.dumps(
    {
        "type": "object",
        "properties": {f"property_{i}": {"enum": [f"value {i} {j}" for j in range(8)]} for i in range(150)},
        "required": [f"property_{i}" for i in range(150)],
    }
)
TO_COMPILE = (
    {"json_schema": LARGE},
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    {"regex": "(a{1,1000}){1,1000}"},
    {"json_schema": json.dumps({"type": "array", "items": {"type": "string", "minLength": 5000, "maxLength": 90000}})},
    {"ebnf": 'root ::= root root | "a" | ""'},
    {"json_schema": LARGE.replace("value", "other")},
)
"""Grammars that take long, some of them for ever."""


class Served:
    """A scheduler with requests that say what their scripts say."""

    def __init__(self, scripts: Sequence[Sequence[int]], output: StructuredOutput, *, spare: int = 0) -> None:
        """`spare`: slots for more requests, which say what they may."""
        context = PROMPT + max(map(len, scripts)) + 8
        more = [[EOS]] * spare
        device = TimedDevice([*scripts, *more], context=context, vocab_size=VOCAB_SIZE, obedient=spare > 0)
        capacity = device.capacity
        kv = KvManager(capacity.spaces, capacity.num_slots, context, prefix_cache("radix"))
        self._requests, nowhere = Link(), Link(keeps=False)
        channels = Channels(requests=self._requests, to_detokenizer=nowhere, to_tokenizer=nowhere)
        limits = PrefillLimits(max_prefill_tokens=1 << 20, chunked_prefill_size=None)
        options = SchedulerOptions(limits=limits, eos_token_ids=(EOS,))
        self._assembled: Assembled = assemble(
            device, kv, channels, options, _no_strings, role=output.role, filler=output.filler
        )
        self._rng = np.random.default_rng(0)
        self._sent = 0
        self.step: Callable[[], None] = self._assembled.loop.step

    @property
    def running(self) -> int:
        return self._assembled.scheduler.lanes.size

    @property
    def open(self) -> int:
        """Requests that have no end yet."""
        return len(self._assembled.scheduler.reqs)

    def ask(self, tokens: int, **grammar: str) -> None:
        """One more request, for at most so many tokens."""
        params = SamplingParams(max_new_tokens=tokens, temperature=0.0, sampling_seed=1, **grammar)  # type: ignore[arg-type]
        ids = pack_ids(self._rng.integers(3, 1000, PROMPT).astype(np.int32))
        self._sent += 1
        rid = f"{self._sent:032x}"
        self._requests.send(
            TokenizedGenerateReqInput(rid=rid, input_ids=ids, sampling_params=params, stream=True, extra_key="")
        )


def _no_strings(_params: SamplingParams) -> Any:
    raise AssertionError("no request here has stop strings")


def scripts_of(vocabulary: Vocabulary, rows: int, steps: int) -> list[list[int]]:
    """For each row a different document of ANSWER, longer than `steps`, each at a different place."""
    rng = random.Random(rows)
    ids, words = ids_of(vocabulary), words_of(vocabulary)
    found = []
    for _ in range(rows):
        tokens: list[int] = []
        texts: list[str] = []
        while len(tokens) < steps + 16:
            texts += [document(rng, words) for _ in range(8)]
            tokens = tokens_of(f"[{', '.join(texts)}]", ids)
        found.append(tokens)
    return found


def timed_steps(served: Served, steps: int) -> list[float]:
    """Milliseconds of each turn of the loop, each of which gives a token to each row."""
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        served.step()
        taken.append(1e3 * (time.perf_counter() - began))
    return taken


def measure_tpot(rows: int, vocabulary: Vocabulary, output: StructuredOutput) -> dict[str, Any]:
    """In turn: `rows` requests without a grammar, and as many that are held to ANSWER and generate the same tokens."""
    steps = WARM_UP + TURNS * TURN + rows
    scripts = scripts_of(vocabulary, rows, steps)
    free, held = Served(scripts, StructuredOutput.none()), Served(scripts, output)
    for served, grammar in ((free, {}), (held, {"json_schema": ANSWER})):
        for _ in range(rows):
            served.ask(steps, **grammar)
        while served.running < rows:
            served.step()
        timed_steps(served, WARM_UP)
    freeze_heap()
    without, with_schema = [], []
    for _ in range(TURNS):
        without.append(statistics.mean(timed_steps(free, TURN)[FIRST:]))
        with_schema.append(statistics.mean(timed_steps(held, TURN)[FIRST:]))
    assert held.running == free.running == rows
    ratios = sorted(b / a for a, b in zip(without, with_schema, strict=True))
    ratio = statistics.median(ratios)
    return {
        "rows": rows,
        "tpot_ms": round(statistics.median(without), 3),
        "tpot_with_schema_ms": round(statistics.median(with_schema), 3),
        "ratio": round(ratio, 4),
        "ratio_p10_p90": [round(ratios[len(ratios) // 10], 4), round(ratios[-1 - len(ratios) // 10], 4)],
        "goal": GOALS.get(rows),
        "reached": ratio <= GOALS[rows] if rows in GOALS else None,
    }


def measure_stalls(vocabulary: Vocabulary, output: StructuredOutput, rounds: int) -> dict[str, Any]:
    """The gaps between tokens of BESIDE requests without a grammar: first while nothing is compiled, then while
    TO_COMPILE grammars are.
    """
    most = 20_000
    scripts = [[1000 + row] * most for row in range(BESIDE)]
    served = Served(scripts, output, spare=len(TO_COMPILE) + 2)
    for _ in range(BESIDE):
        served.ask(most)
    while served.running < BESIDE:
        served.step()
    timed_steps(served, WARM_UP)
    freeze_heap()
    quiet: list[float] = []
    compiling: list[float] = []
    seconds = 0.0
    for number in range(rounds):
        until = time.perf_counter() + QUIET_S
        while time.perf_counter() < until:
            quiet += timed_steps(served, 10)
        began = time.perf_counter()
        for grammar in TO_COMPILE:
            # Another grammar each time: what was compiled is kept.
            served.ask(1, **{kind: _renamed(kind, text, number) for kind, text in grammar.items()})
        compiling += timed_steps(served, 1)
        while served.open > BESIDE:
            compiling += timed_steps(served, 1)
        seconds += time.perf_counter() - began
    step = statistics.median(quiet)
    longest = max(compiling)
    return {
        "running": BESIDE,
        "grammars": rounds * len(TO_COMPILE),
        "seconds_of_compiling": round(seconds, 1),
        "step_ms": round(step, 2),
        "p99_ms": [round(float(np.quantile(quiet, 0.99)), 2), round(float(np.quantile(compiling, 0.99)), 2)],
        "longest_ms": [round(max(quiet), 2), round(longest, 2)],
        "goal": STALL_GOAL,
        "reached": longest <= max(STALL_GOAL * step, max(quiet)),
    }


def _renamed(kind: str, text: str, number: int) -> str:
    """Another grammar, as hard as `text`."""
    match kind:
        case "json_schema":
            return json.dumps({**json.loads(text), "description": str(number)})
        case "regex":
            return text.replace("a", "abcdefgh"[number])
    return text.replace('"a"', f'"{number}"')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 64, 256])
    parser.add_argument("--backend", choices=list(BACKENDS), default="xgrammar")
    parser.add_argument("--rounds", type=int, default=3, help="bursts of grammars to compile")
    args = parser.parse_args()
    vocabulary = made_up_vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(vocabulary, Path(folder))
        setup = CompilerSetup(backend=args.backend, tokenizer_path=folder, vocab_size=VOCAB_SIZE, eos_ids=(EOS,))
        output = StructuredOutput.start(setup, Tokenizer.load(folder), patience_s=math.inf)
        cases = []
        for rows in args.rows:
            cases.append(measure_tpot(rows, vocabulary, output))
            print(json.dumps(cases[-1]), flush=True)
            gc.unfreeze()
        stalls = measure_stalls(vocabulary, output, args.rounds)
    print(json.dumps(stalls), flush=True)
    result = {
        "what": "time per token with a JSON schema / without, on a device of which there is only the time",
        "backend": args.backend,
        "cores": usable_cores(),
        "python": sys.version.split()[0],
        "vocab_size": VOCAB_SIZE,
        "time_per_token": cases,
        "stalls_while_compiling": stalls,
        "goal": {**{str(rows): goal for rows, goal in GOALS.items()}, "stall_in_steps": STALL_GOAL},
        "reached": all(case["reached"] is not False for case in cases) and stalls["reached"],
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
