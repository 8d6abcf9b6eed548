"""The layout that scripts read: names, columns and order as in SGLang, and the JSON keys of its lines."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mysglang.bench import plot, report
from mysglang.bench.metrics import measure
from mysglang.bench.records import RequestRecord
from mysglang.bench.refused import Refused
from mysglang.bench.serving import accept_length
from mysglang.bench.vocabulary import Vocabulary

RECORDS = [RequestRecord(0.0, 10, 1.0, [(0.25, 1), (1.0, 3)], 4), RequestRecord(0.5, 6, 2.0, [(0.75, 1), (2.0, 1)], 2)]
METRICS = measure(RECORDS, 0.0, 2.0, Vocabulary.of_size(10), {"ttft": 300.0})

TABLE = """
============ Serving Benchmark Result ============
Backend:                                 sglang    
Traffic request rate:                    inf       
Max request concurrency:                 not set   
Successful requests:                     2         
Benchmark duration (s):                  2.00      
Total input tokens:                      16        
Total input text tokens:                 16        
Total generated tokens:                  6         
Request throughput (req/s):              1.00      
Input token throughput (tok/s):          8.00      
Output token throughput (tok/s):         3.00      
Peak output token throughput (tok/s):    3.00      
Peak concurrent requests:                2         
Total token throughput (tok/s):          11.00     
Concurrency:                             1.25      
Request goodput (req/s):                 1.00      
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1250.00   
"""  # noqa: W291

TIMES = ("E2E Latency", "TTFT", "TPOT", "ITL")


def table(cache_report: bool = False) -> str:
    return report.serving_table(
        METRICS, backend="sglang", request_rate=float("inf"), max_concurrency=None, cache_report=cache_report
    )


def test_the_table() -> None:
    assert table().startswith(TABLE)
    names = [line.partition(":")[0] for line in table().splitlines() if "(ms)" in line]
    wanted = [f"{which} {name} (ms)" for name in TIMES for which in ("Mean", "Median", "P90", "P95", "P99")]
    assert names == [*wanted, "Max ITL (ms)"]
    assert table().endswith("\n" + "=" * 50)


def test_the_accept_length_of_a_server_with_drafts() -> None:
    told = accept_length({"internal_states": [{"avg_spec_accept_length": 2.5}]})
    metrics = replace(METRICS, accept_length=told)
    assert metrics.flat()["accept_length"] == 2.5
    lines = report.serving_table(
        metrics, backend="sglang", request_rate=float("inf"), max_concurrency=None, cache_report=False
    ).splitlines()
    assert f"{'Accept length:':<40} {'2.50':<10}" in lines
    assert "Accept length" not in table()
    for info in (None, {}, {"internal_states": [{"avg_spec_accept_length": None}]}):
        assert accept_length(info) is None


def test_the_cache_is_told_of_when_asked() -> None:
    assert "Cache hit rate" not in table()
    assert f"{'Cache hit rate (%):':<40} not told" in table(cache_report=True)


def test_json_keys() -> None:
    keys = METRICS.flat().keys()
    times = {
        f"{w}_{n}_ms"
        for n in ("e2e_latency", "ttft", "tpot", "itl")
        for w in ("mean", "median", "std", "p90", "p95", "p99")
    }
    assert times <= keys
    plain = """
    duration completed total_input_tokens total_input_text_tokens total_input_vision_tokens total_output_tokens
    total_output_tokens_retokenized request_throughput input_throughput output_throughput total_throughput
    concurrency accept_length max_output_tokens_per_s max_concurrent_requests total_prompt_tokens total_cached_tokens
    cache_hit_rate_pct
    """
    assert set(plain.split()) <= keys


def test_lines_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for number in range(2):
        report.append_json(str(path), [{"run": number, "rate": 1.5}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"run": n, "rate": 1.5} for n in (0, 1)]
    with pytest.raises(Refused, match="cannot be written"):
        report.append_json(str(tmp_path), [])


def test_offline_table() -> None:
    figures = {
        "backend": "engine",
        "successful_requests": 3,
        "total_latency": 2.0,
        "total_input_tokens": 30,
        "total_output_tokens": 12,
        "last_gen_throughput": 5.0,
        "request_throughput": 1.5,
        "input_throughput": 15.0,
        "output_throughput": 6.0,
        "total_throughput": 21.0,
    }
    lines = report.offline_table(figures).splitlines()
    assert lines[1] == "====== Offline Throughput Benchmark Result ======="
    assert lines[-3:-1] == [
        f"{'Output token throughput (tok/s):':<40} {'6.00':<10}",
        f"{'Total token throughput (tok/s):':<40} {'21.00':<10}",
    ]


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.png"
    plot.draw(str(path), "a run", RECORDS, 0.0)
    assert path.read_bytes().startswith(b"\x89PNG")
    plot.draw(str(path), "one in which all failed", [], 0.0)
    with pytest.raises(Refused, match="cannot be written"):
        plot.draw(str(tmp_path / "no" / "folder.png"), "a run", RECORDS, 0.0)


def test_without_matplotlib_a_plot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match=r"pip install 'mysglang\[plot\]'"):
        plot.require_matplotlib()
