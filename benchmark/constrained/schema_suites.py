"""Is every finished answer valid, and what is refused? Counts over public collections of JSON schemas.

    python benchmark/constrained/schema_suites.py --backend xgrammar
    python benchmark/constrained/schema_suites.py --folder ~/jsonschemabench/maskbench/data --draw 300

Without a folder, the JSON-Schema-Test-Suite of draft 2020-12, which is in `test/fixtures/data`. A folder is that of
MaskBench, which has no licence that would let it be there. Answers are drawn at random from the masks, without a model.
Prints one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "test"))

from fixtures.grammar_walk import backend_named, compiled
from fixtures.schema_suites import folder_cases, judge, official_cases
from mysglang.srt.constrained.backend import JsonStyle


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="xgrammar")
    parser.add_argument("--folder", type=Path, default=None, help="with a JSON file for each schema")
    parser.add_argument("--draw", type=int, default=None, help="schemas to draw of these, by a fixed seed")
    parser.add_argument("--only", default="", help="only schemas whose name contains this")
    parser.add_argument("--walks", type=int, default=6, help="answers for each schema")
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of compiling one")
    parser.add_argument("--show", action="store_true", help="print what is wrong or refused as it is found")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    cases = official_cases() if args.folder is None else list(folder_cases(args.folder))
    cases = [case for case in cases if args.only in case.name]
    if args.draw is not None and args.draw < len(cases):
        cases = random.Random(0).sample(cases, args.draw)
    backend = backend_named(args.backend, JsonStyle())
    compiled(backend, "json_schema", '{"type": "boolean"}')  # what a library builds once
    total: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    seconds: list[float] = []
    for case in cases:
        found = judge(backend, case, walks=args.walks, seconds=args.seconds)
        total.update(_counts(found))
        if "refused" in found:
            refused[found["keyword"]] += 1
        else:
            seconds.append(found["seconds"])
        if args.show:
            _show(case.name, case.schema, found)
    milliseconds = [1000 * value for value in sorted(seconds)] or [0.0]
    result: dict[str, Any] = {"backend": args.backend, "schemas": len(cases), **total, "refused_by": dict(refused)}
    result["compile_ms"] = {
        "median": round(statistics.median(milliseconds), 2),
        "p90": round(milliseconds[len(milliseconds) * 9 // 10], 2),
        "most": round(milliseconds[-1], 1),
    }
    print(json.dumps(result))
    return int(bool(total["invalid_answers"]))


def _counts(found: dict[str, Any]) -> dict[str, int]:
    if "refused" in found:
        return {"refused": 1}
    valid, invalid = found["counts"]
    return {
        "accepted": 1,
        "ended": found["ended"],
        "cut": found["cut"],
        "stuck": found["stuck"],
        "unjudged": found["unjudged"],
        "invalid_answers": len(found["wrong"]),
        "schemas_with_invalid_answers": int(bool(found["wrong"])),
        "valid_instances": valid,
        "valid_instances_refused": len(found["said_no"]),
        "invalid_instances": invalid,
        "invalid_instances_taken": len(found["said_yes"]),
    }


def _show(name: str, schema: Any, found: dict[str, Any]) -> None:
    for kind in ("refused", "wrong", "stuck", "said_no", "said_yes"):
        if found.get(kind):
            print(f"{name} {kind}: {json.dumps(found[kind])[:300]}\n    {json.dumps(schema)[:400]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
