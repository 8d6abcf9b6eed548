"""`--plot`: one picture of a run, how its times are distributed and how many tokens came in each second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mysglang.bench.metrics import MS, tokens_by_second
from mysglang.bench.records import RequestRecord
from mysglang.bench.refused import Refused

DPI = 120


def require_matplotlib() -> None:
    """Raises Refused if matplotlib is missing, before a long run rather than after it."""
    _pyplot()


def draw(path: str, heading: str, records: Sequence[RequestRecord], start: float) -> None:
    """Write the PNG. Raises Refused if it cannot be written."""
    plt = _pyplot()
    good = [record for record in records if record.ok]
    curves = {
        "time to first token (ms)": [record.ttft for record in good],
        "time per output token (ms)": [tpot for record in good if (tpot := record.tpot) is not None],
        "end-to-end latency (ms)": [record.latency for record in good],
    }
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    figure.suptitle(heading)
    for axis, (name, seconds) in zip(axes.flat, curves.items(), strict=False):
        _distribution(axis, name, seconds)
    axis = axes.flat[3]
    by_second = tokens_by_second(good, start)
    axis.stairs(by_second, np.arange(len(by_second) + 1), fill=True, alpha=0.6)
    axis.set(xlabel="second of the run", ylabel="output tokens", ylim=(0, None))
    try:
        figure.savefig(path, dpi=DPI)
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be written: {error}.") from None
    finally:
        plt.close(figure)


def _distribution(axis: Any, name: str, seconds: Sequence[float]) -> None:
    """Draws the cumulative distribution: the share of requests that took at most so many milliseconds."""
    ms = np.sort(np.asarray(seconds)) * MS
    axis.plot(ms, np.arange(1, len(ms) + 1) / max(1, len(ms)), drawstyle="steps-post")
    for percent in (50, 99) if len(ms) else ():
        axis.axvline(np.percentile(ms, percent), linestyle=":", color="gray")
        axis.annotate(f" p{percent}", (np.percentile(ms, percent), 0.02), color="gray")
    axis.set(xlabel=name, ylabel="share of requests", ylim=(0, 1.02))


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise Refused("--plot needs matplotlib: pip install 'mysglang[plot]'.") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot
