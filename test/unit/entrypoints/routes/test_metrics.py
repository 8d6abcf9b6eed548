"""/metrics: well formed, of one mind with what was served, and all that the dashboard in examples/ asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions

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
"""Told by whoever knows them."""


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
