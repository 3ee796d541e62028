"""Turns the engines' reports into Prometheus metrics, in the server's own registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family

from growpage.budget.rollout import Mode
from growpage.telemetry.catalogue import ENGINE_LABELS, METRICS, Kind, Metric
from growpage.telemetry.report import Report

PREFIX = "growpage_"

M = TypeVar("M", bound=MetricWrapperBase)

_KNOWN_LABELS: dict[tuple[str, ...], Sequence[tuple[str, ...]]] = {
    (): [()],
    ("mode",): [(mode,) for mode in get_args(Mode)],
}


class Exporter:
    """All metrics of the engines behind one server process.

    In a server of several processes each exports what it has been told, and prometheus_client adds
    it up; gauges count as the process that was told last says.

    Args:
        model_name: the model's served name, as vLLM labels it.
        engines: their indexes.
        registry: where the metrics are registered.
    """

    def __init__(
        self, model_name: str, engines: Sequence[int], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._model = model_name
        self._counters = {m.name: _counter(m, registry) for m in _of(Kind.COUNTER)}
        self._gauges = {m.name: _gauge(m, registry) for m in _of(Kind.GAUGE)}
        self._histograms = {m.name: _histogram(m, registry) for m in _of(Kind.HISTOGRAM)}
        self._mode: dict[int, tuple[str, ...]] = {}
        # Counts are there from the start, at 0, where their labels are known by then.
        for engine in engines:
            for metric in METRICS:
                for labels in _KNOWN_LABELS.get(metric.labels, ()):
                    if metric.kind is not Kind.GAUGE:
                        counts = {**self._counters, **self._histograms}
                        self._child(counts[metric.name], engine, labels)

    def record(self, engine: int, report: Report) -> None:
        """Take in a report of one engine."""
        for name, labels, more in report["counters"]:
            self._child(self._counters[name], engine, labels).inc(more)
        for name, labels, value in report["gauges"]:
            self.set(engine, name, value, *labels)
        for name, labels, values in report["values"]:
            histogram = self._child(self._histograms[name], engine, labels)
            for value in values:
                histogram.observe(value)

    def set(self, engine: int, name: str, value: float, *labels: str) -> None:
        """Set one gauge of one engine."""
        if name == "growpage_mode_info":
            self._retire_mode(engine, labels)
        self._child(self._gauges[name], engine, labels).set(value)

    def _retire_mode(self, engine: int, labels: tuple[str, ...]) -> None:
        """An engine is in one mode: what it was in before goes to 0."""
        before = self._mode.get(engine)
        if before is not None and before != labels:
            self._child(self._gauges["growpage_mode_info"], engine, before).set(0)
        self._mode[engine] = labels

    def _child(self, parent: M, engine: int, labels: Sequence[str]) -> M:
        return parent.labels(self._model, str(engine), *labels)


class OwnMetrics:
    """The part of a registry that is growpage's, for ``generate_latest``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        """The families whose name is growpage's."""
        return (family for family in self._registry.collect() if family.name.startswith(PREFIX))


def _of(kind: Kind) -> Iterable[Metric]:
    return (metric for metric in METRICS if metric.kind is kind)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, _labels(metric), registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(
        metric.name,
        metric.help,
        _labels(metric),
        registry=registry,
        multiprocess_mode="mostrecent",
    )


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        metric.name, metric.help, _labels(metric), buckets=metric.buckets, registry=registry
    )


def _labels(metric: Metric) -> tuple[str, ...]:
    return (*ENGINE_LABELS, *metric.labels)
