"""Figures as a page that Prometheus reads. Knows the format, by way of `prometheus_client`, and no figure.

Imported only where such a page is served: a server without one need not load the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mysglang.srt.observability.sheet import Histogram, Instrument, Layout, Level, cumulative

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that goes up and down."""

    name: str
    help: str


@dataclass(slots=True, eq=False)
class Page(Collector):
    """A page of metrics that is being written: every figure has the page's labels and its own."""

    labels: Mapping[str, str]
    _families: dict[str, Metric] = field(default_factory=dict)

    def gauge(self, gauge: Gauge, value: float, **labels: str) -> None:
        """Adds a gauge to the page. Several values of one gauge differ in `labels`, which must have the same names."""
        told = {**self.labels, **labels}
        family = self._families.get(gauge.name) or GaugeMetricFamily(gauge.name, gauge.help, labels=list(told))
        assert isinstance(family, GaugeMetricFamily), f"two kinds of {gauge.name}"
        family.add_metric(list(told.values()), value)
        self._families[gauge.name] = family

    def counter(self, counter: Gauge, value: float, **labels: str) -> None:
        """Adds a counter to the page whose value is counted elsewhere."""
        told = {**self.labels, **labels}
        family = self._families.get(counter.name) or CounterMetricFamily(counter.name, counter.help, labels=list(told))
        assert isinstance(family, CounterMetricFamily), f"two kinds of {counter.name}"
        family.add_metric(list(told.values()), value)
        self._families[counter.name] = family

    def row(self, layout: Layout, row: Sequence[float], *, without: Sequence[Instrument] = ()) -> None:
        """Adds all instruments of `layout` with the numbers of `row`, except those that are not counted."""
        for instrument in layout.instruments:
            if instrument not in without:
                self.instrument(instrument, layout.part(row, instrument))

    def instrument(self, instrument: Instrument, numbers: Sequence[float]) -> None:
        """Adds an instrument with its present numbers to the page. Instruments with one name and different labels form
        one family.
        """
        labels = {**self.labels, **dict(instrument.labels)}
        names, values = list(labels), list(labels.values())
        family = self._families.get(instrument.name)
        if isinstance(instrument, Histogram):
            if family is None:
                family = HistogramMetricFamily(instrument.name, instrument.help, labels=names)
            assert isinstance(family, HistogramMetricFamily), f"two kinds of {instrument.name}"
            family.add_metric(values, cumulative(instrument, numbers), numbers[-1])
        elif isinstance(instrument, Level):
            if family is None:
                family = GaugeMetricFamily(instrument.name, instrument.help, labels=names)
            assert isinstance(family, GaugeMetricFamily), f"two kinds of {instrument.name}"
            family.add_metric(values, numbers[0])
        else:
            if family is None:
                family = CounterMetricFamily(instrument.name, instrument.help, labels=names)
            assert isinstance(family, CounterMetricFamily), f"two kinds of {instrument.name}"
            family.add_metric(values, numbers[0])
        self._families[instrument.name] = family

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def render(pages: Iterable[Page]) -> bytes:
    """Renders several pages as one, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    for page in pages:
        registry.register(page)
    return generate_latest(registry)
