"""Sums over recorded kernels: time that overlaps counts once, names can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmark"))

from step_profile.bench import Activity, busy_time, by_kernel, figures, short_name


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([], 0),
        ([(0, 2), (5, 1)], 3),
        ([(0, 4), (3, 2)], 5),  # the second begins while the first drains
        ([(5, 1), (0, 10), (2, 3)], 10),  # one inside another, in any order
        ([(0, 1), (1, 1)], 2),
    ],
)
def test_busy_time(spans: list[tuple[float, float]], busy: float) -> None:
    assert busy_time(Activity("k", start, duration) for start, duration in spans) == busy


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_rope_kernel", "_rope_kernel"),
        ("void flashinfer::BatchPrefill<flashinfer::Traits<1>, A>(P)", "BatchPrefill"),
        ("void at::native::(anonymous namespace)::indexSelect<int, 2>(X)", "indexSelect"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_figures_are_of_one_step() -> None:
    steps = [Activity("a", 0, 10), Activity("b", 10, 30), Activity("a", 50, 20), Activity("b", 70, 40)]
    found = figures(steps, 2, latency=100e-6, launch=20e-6)
    assert (found["latency_ms"], found["host_launch_ms"], found["busy_ms"]) == (0.1, 0.02, 0.05)
    assert found["idle_share"] == pytest.approx(0.5) and found["kernels"] == 2
    assert by_kernel(steps, 2) == [
        {"kernel": "b", "count": 1, "median_us": 35, "median_added_us": 35, "added_us": 35},
        {"kernel": "a", "count": 1, "median_us": 15, "median_added_us": 15, "added_us": 15},
    ]
