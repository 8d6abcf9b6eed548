"""bench_serving as its users run it, against a real server: what it prints, what it writes, how it refuses."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess
from fixtures.warm_commands import run_cold, run_warm

LENGTHS = ["--random-input-len", "24", "--random-output-len", "8", "--random-range-ratio", "1"]
SMALL = ["--dataset-name", "random-ids", "--num-prompts", "6", *LENGTHS, "--disable-tqdm"]
TOKENS = 6 * 8


def bench(
    server: ServerProcess, *options: str, folder: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The finished tool, and the line that it wrote."""
    path = folder / "out.jsonl"
    arguments = ["--base-url", server.url, "--output-file", str(path), *SMALL, *options]
    done = run_warm("mysglang.bench_serving", arguments)
    return done, json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize(
    "backend",
    ["sglang", "sglang-oai", "sglang-oai-chat", "sglang --disable-stream", "sglang-oai --tokenize-prompt --top-p 0.9"],
)
def test_every_backend(tiny_server: ServerProcess, tmp_path: Path, backend: str) -> None:
    done, figures = bench(tiny_server, "--backend", *backend.split(), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (figures["backend"], figures["completed"], figures["failed"]) == (backend.split()[0], 6, 0)
    assert figures["total_output_tokens"] == TOKENS
    assert figures["total_input_tokens"] >= 6 * 24
    assert 0 < figures["mean_ttft_ms"] <= figures["mean_e2e_latency_ms"]
    assert (figures["mean_itl_ms"] > 0) == ("--disable-stream" not in backend)
    assert figures["output_throughput"] == pytest.approx(TOKENS / figures["duration"])
    assert figures["server_info"]["served_model_name"] == "mysglang-tiny"
    assert f"{'Total generated tokens:':<40} {TOKENS}" in done.stdout
    assert_quiet(tiny_server.url)


def test_the_tokenizer_of_a_server_of_vllms_is_found(tiny_server: ServerProcess, tmp_path: Path) -> None:
    """The list of models tells where it is; the name under which a model is served says nothing."""
    done, figures = bench(tiny_server, "--backend", "vllm", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (figures["completed"], figures["total_output_tokens"]) == (6, TOKENS)


def test_load_and_details(tiny_server: ServerProcess, tmp_path: Path) -> None:
    options = "--request-rate 100 --max-concurrency 2 --tag mine --goodput ttft:60000 --output-details --flush-cache"
    done, figures = bench(tiny_server, *options.split(), "--warmup-requests", "2", folder=tmp_path)
    assert (done.returncode, figures["tag"], figures["max_concurrent_requests"]) == (0, "mine", 2)
    assert figures["request_goodput"] == pytest.approx(figures["request_throughput"])
    assert sum(figures["output_lens"]) == figures["total_output_tokens"] == TOKENS
    assert [len(gaps) for gaps in figures["itls"]] == [count - 1 for count in figures["output_lens"]]
    assert sum(figures["input_lens"]) == figures["total_input_tokens"]
    assert figures["errors"] == [""] * 6


def test_a_shared_prefix_is_cached(tiny_server: ServerProcess, tmp_path: Path) -> None:
    options = "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 4 --tokenize-prompt"
    lens = "--gsp-system-prompt-len 64 --gsp-question-len 8 --gsp-output-len 3 --flush-cache --cache-report"
    done, figures = bench(tiny_server, *options.split(), *lens.split(), folder=tmp_path)
    assert (done.returncode, figures["completed"], figures["total_input_tokens"]) == (0, 8, 8 * 72)
    assert figures["total_cached_tokens"] >= 6 * 64
    assert "Cache hit rate (%):" in done.stdout


def test_what_the_server_refuses(tiny_server: ServerProcess, tmp_path: Path) -> None:
    extra = ["--extra-request-body", '{"sampling_params": {"top_p": 7}}']
    done, figures = bench(tiny_server, *extra, folder=tmp_path)
    assert (done.returncode, figures) == (1, {})
    assert "warm-up request failed: status 400" in done.stderr and "top_p" in done.stderr
    done, figures = bench(tiny_server, *extra, "--warmup-requests", "0", folder=tmp_path)
    assert (done.returncode, figures["completed"], figures["failed"]) == (1, 0, 6)
    assert "6 requests failed, the first with: status 400" in done.stderr


def test_no_server(tmp_path: Path) -> None:
    arguments = ["--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0.1", *SMALL]
    done = run_cold("mysglang.bench_serving", arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no server is ready after 0.1 s")
