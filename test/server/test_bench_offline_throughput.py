"""bench_offline_throughput as its users run it: a table, the same as JSON, and every token that was asked for."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.warm_commands import run_cold, run_warm

SHARED = ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "2", "--gsp-prompts-per-group", "3"]
LENGTHS = ["--gsp-system-prompt-len", "32", "--gsp-question-len", "8", "--gsp-output-len", "5"]


def bench(
    *options: str, run: Callable[..., subprocess.CompletedProcess[str]] = run_warm
) -> subprocess.CompletedProcess[str]:
    return run("mysglang.bench_offline_throughput", [*SHARED, *LENGTHS, *options])


@pytest.mark.parametrize("options", [[], ["--skip-tokenizer-init", "--skip-warmup", "--disable-radix-cache"]])
def test_the_tool(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "out.jsonl"
    done = bench("--result-filename", str(path), *options, run=run_warm if options else run_cold)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    figures: dict[str, Any] = json.loads(last)
    assert json.loads(path.read_text()) == figures
    assert (figures["successful_requests"], figures["total_output_tokens"]) == (6, 30)
    assert figures["total_throughput"] == pytest.approx(figures["input_throughput"] + figures["output_throughput"])
    assert "Offline Throughput Benchmark Result" in done.stdout
    assert f"{'Total generated tokens:':<40} 30" in done.stdout
    if options:
        # Ids have exactly the length that was asked for.
        assert (figures["total_input_tokens"], figures["total_cached_tokens"]) == (6 * 40, 0)
    else:
        assert figures["total_cached_tokens"] >= 4 * 28


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (
            ["--random-input-len", "999", "--random-range-ratio", "1", "--context-length", "32"],
            1,
            "is longer than the model's context length",
        ),
        (["--extra-request-body", '{"colour": 1}'], 1, "unknown field `colour`"),
        (["--extra-request-body", '{"stream": true}'], 2, "stream: this tool gives these fields itself"),
        (["--extra-request-body", '{"sampling_params": 1}'], 2, "sampling_params must be an object"),
    ],
)
def test_requests_that_are_refused(options: list[str], status: int, said: str) -> None:
    done = bench("--dataset-name", "random-ids", "--num-prompts", "1", *options)
    assert done.returncode == status
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_what_cannot_be_is_refused() -> None:
    done = bench("--model-path", "/nowhere/at/all")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "/nowhere/at/all" in done.stderr
