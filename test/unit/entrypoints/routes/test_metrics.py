"""/metrics: well formed, of one mind with what was served, and all that the dashboard in examples/ asks for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fixtures.patience import PATIENCE_S
from fixtures.ready_child import FACTS
from fixtures.scripted_engine import serve, silent
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.routes import metrics
from mysglang.srt.entrypoints.routes.metrics import _gauge_scheduler, _gauge_start
from mysglang.srt.messages.control import Census, HeartBeat, SchedulerFigures
from mysglang.srt.observability.exposition import Page, render

DASHBOARD = Path(__file__).parents[4] / "examples/monitoring/grafana/dashboards/mysglang.json"
COUNTED = AppOptions(served_model_name='the "tiny" one', enable_metrics=True, api_keys=("key",))
KEY = {"Authorization": "Bearer key"}


async def scraped() -> dict[str, float]:
    """Every sample after one answer: its name, without labels, and its value; labelled kinds added up."""
    async with serve(options=COUNTED) as served:
        assert (await served.post("/generate", {"text": "The fox"}, headers=KEY)).status_code == 200
        response = await served.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["model_name"] == 'the "tiny" one'
            if sample.labels.get("le", "+Inf") == "+Inf":
                samples[sample.name] = samples.get(sample.name, 0) + sample.value
    return samples


async def test_one_answer() -> None:
    samples = await scraped()
    assert samples["sglang:num_requests_total"] == 1
    assert samples["sglang:generation_tokens_total"] == 4
    assert samples["sglang:cached_tokens_total"] == 4
    assert samples["sglang:time_to_first_token_seconds_count"] == 1
    assert samples["sglang:e2e_request_latency_seconds_bucket"] == 1
    assert samples["sglang:max_total_num_tokens"] == 1000
    assert samples["sglang:num_running_reqs"] == 0


async def test_open_http_requests_and_processor_time() -> None:
    async with serve(silent, options=COUNTED) as served:
        headers = {**KEY, "x-smg-routing-key": "shop"}
        asking = asyncio.create_task(served.post("/generate", {"text": "The fox"}, headers=headers))
        page = ""
        async with asyncio.timeout(PATIENCE_S):
            while 'sglang:routing_keys_active{engine_type="unified",model_name="the \\"tiny\\" one"} 1.0' not in page:
                page = (await served.client.get("/metrics")).text
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    values = samples_of(page)
    active = "sglang:http_requests_active"
    assert values[active, ("endpoint", "/generate"), ("method", "POST")] == 1
    assert values[active, ("endpoint", "/v1/completions"), ("method", "POST")] == 0
    assert values["sglang:process_cpu_seconds_total", ("component", "tokenizer")] > 0
    assert values["sglang:startup_time_seconds", ("phase", "e2e")] > 0


async def test_figures_of_a_scheduler_carry_its_rank() -> None:
    async with serve(options=COUNTED) as served:
        values = samples_of((await served.client.get("/metrics")).text)
    rank = ("moe_ep_rank", "0"), ("pp_rank", "0"), ("tp_rank", "2")
    assert values["sglang:num_running_reqs", *rank] == 0
    assert values["sglang:settled_first_total", *rank[:2], ("reason", "memory"), rank[2]] == 0


async def test_answers_by_status() -> None:
    async with serve(options=COUNTED) as served:
        await served.post("/generate", {"text": "The fox"}, headers=KEY)
        await served.post("/generate", {"text": 1}, headers=KEY)
        await served.post("/generate", {"text": "The fox"}, headers={"Authorization": "Bearer nobody"})
        await served.post("/nowhere", {}, headers=KEY)
        values = samples_of((await served.client.get("/metrics")).text)
    answers = {key[1:]: value for key, value in values.items() if key[0] == "sglang:http_responses_total"}
    found = {dict(labels)["status_code"]: value for labels, value in answers.items()}
    assert found == {"200": 1, "400": 1, "401": 1}


async def test_a_flood_of_scrapes_looks_at_the_processes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(metrics, "_cpu_seconds", lambda: looks.append(1) or {"tokenizer": float(len(looks))})
    monkeypatch.setattr(metrics, "CPU_SECONDS_AGE_S", 3600.0)
    processor_time = metrics.ProcessorTime()
    found = await asyncio.gather(*(processor_time.by_component() for _ in range(50)))
    assert found == [{"tokenizer": 1.0}] * 50
    monkeypatch.setattr(metrics, "CPU_SECONDS_AGE_S", 0.0)
    assert await processor_time.by_component() == {"tokenizer": 2.0}


def test_what_the_scheduler_says_of_priorities_and_routing_keys() -> None:
    census = Census({3: 2, -1: 1}, {3: 4}, running_keys=[1, 2], all_keys=[1, 4, 250])
    beat = HeartBeat(
        rank=0,
        forward_steps=1,
        num_running_reqs=3,
        num_waiting_reqs=4,
        figures=SchedulerFigures(fwd_occupancy=87.5, spec_accept_length=2.5, spec_accept_rate=0.5, census=census),
    )
    page = Page({"priority": ""})
    _gauge_scheduler(page, beat, FACTS)
    _gauge_start(page, {"load_weight": 2.0, "cuda_graph_decode": 3.0})
    values = samples_of(render([page]).decode())
    running, waiting = "sglang:num_running_reqs", "sglang:num_queue_reqs"
    assert [values[running, ("priority", label)] for label in ("", "3", "-1")] == [3, 2, 1]
    assert [values[waiting, ("priority", label)] for label in ("", "3")] == [4, 4]
    of_all = ("priority", "")
    assert values["sglang:fwd_occupancy", of_all] == 87.5
    assert (values["sglang:spec_accept_length", of_all], values["sglang:spec_accept_rate", of_all]) == (2.5, 0.5)
    assert values["sglang:num_unique_running_routing_keys", of_all] == 2
    keys = {name[1:3]: value for name, value in values.items() if name[0] == "sglang:routing_key_all_req_count"}
    assert len(keys) == 11 and sum(keys.values()) == 3
    for bounds in (("0", "1"), ("3", "5"), ("200", "+Inf")):
        assert keys[("gt", bounds[0]), ("le", bounds[1])] == 1
    assert values["sglang:startup_time_seconds", ("phase", "load_weight"), of_all] == 2
    assert values["sglang:startup_cuda_graph_time_seconds", ("phase", "decode"), of_all] == 3


def samples_of(page: str) -> dict[tuple[Any, ...], float]:
    """(name, *labels beside those of every sample) -> value."""
    common = ("model_name", "engine_type")
    return {
        (sample.name, *sorted(label for label in sample.labels.items() if label[0] not in common)): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_the_dashboard_asks_for_what_there_is() -> None:
    known = {*await scraped(), *MEASURED_ON_A_DEVICE}
    asked = {name for text in queries(json.loads(DASHBOARD.read_text())) for name in re.findall(r"sglang:\w+", text)}
    assert len(asked) > 15
    assert asked <= known


MEASURED_ON_A_DEVICE = {
    "sglang:weight_memory_usage_gb",
    "sglang:kv_cache_memory_usage_gb",
    "sglang:graph_memory_usage_gb",
}
"""Reported only by a scheduler that knows them."""


def queries(part: Any) -> Iterator[str]:
    """Every query of a dashboard, wherever it stands."""
    if isinstance(part, dict):
        yield from (text for key, text in part.items() if key in ("expr", "query") and isinstance(text, str))
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from queries(inner)


async def test_nothing_is_there_unless_asked_for() -> None:
    async with serve() as served:
        assert (await served.client.get("/metrics")).status_code == 404
