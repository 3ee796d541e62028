"""What a diagnosis knows: the metrics of every engine over a span of time.

It is the same whether two scrapes of a server or a range query of Prometheus stand behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from growpage.budget.config import BudgetConfig
from growpage.telemetry.catalogue import METRICS, Kind

RUNNING = "vllm:num_requests_running"

_COUNTING = {
    name: metric
    for metric in METRICS
    if metric.labels and metric.kind is not Kind.GAUGE
    for name in metric.exposed
}
"""What has no series before it has counted something, by the names that Prometheus sees."""


class MissingMetricError(LookupError):
    """An engine does not export a metric, or not with the label that is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(f"metric {name} is not exported")
        self.name = name


@dataclass(frozen=True)
class Series:
    """One time series."""

    labels: Mapping[str, str]
    points: Mapping[float, float]
    """Value by Unix time in seconds, in order of time; at least one, none of them NaN."""

    @property
    def begin(self) -> float:
        """Time of the first point."""
        return next(iter(self.points))

    @property
    def end(self) -> float:
        """Time of the last point."""
        return max(self.points)

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[self.end]

    @property
    def resets(self) -> int:
        """How often a counter went back."""
        return sum(after < before for before, after in pairwise(self.points.values()))

    @property
    def increase(self) -> float:
        """By how much a counter rose from its first point on, what was lost to resets included."""
        return sum(
            after - before if after >= before else after
            for before, after in pairwise(self.points.values())
        )


@dataclass(frozen=True)
class Histogram:
    """Observations in buckets."""

    buckets: tuple[tuple[float, float], ...]
    """Upper bound and the observations up to it, ascending; the last bound is infinite."""
    total: float
    """Sum of the observations."""
    since_start: bool = False
    """Of the engine's whole life, for want of observations within the span."""

    @property
    def count(self) -> float:
        """Observations."""
        return self.buckets[-1][1] if self.buckets else 0.0

    @property
    def mean(self) -> float:
        """Their mean; NaN if there are none."""
        return self.total / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """As PromQL's ``histogram_quantile``: linear within a bucket; NaN if there are none."""
        if not self.count:
            return math.nan
        rank = share * self.count
        lower = below = 0.0
        for upper, up_to in self.buckets:
            if up_to >= rank:
                if math.isinf(upper):
                    return lower
                return lower + (upper - lower) * (rank - below) / max(up_to - below, 1e-12)
            lower, below = upper, up_to
        return lower


@dataclass(frozen=True)
class Engine:
    """One engine's metrics, by the names that Prometheus sees."""

    name: str
    """How to tell it from the others."""
    model: str
    series: Mapping[str, tuple[Series, ...]]
    declared: frozenset[str] = frozenset()
    """Names that its source describes, even where no sample has come yet."""
    settings: BudgetConfig | None = None
    """What it runs with, as far as somebody said."""

    @property
    def begin(self) -> float:
        """Time of the first point of any series."""
        return min(series.begin for several in self.series.values() for series in several)

    @property
    def has_growpage(self) -> bool:
        """Whether it exports any metric of growpage."""
        return any(name.startswith("growpage_") for name in self.series)

    def find(self, name: str, **labels: str) -> tuple[Series, ...]:
        """The series of a metric with these labels.

        A labelled counter or histogram that has not counted anything yet has none.

        Raises:
            MissingMetricError: the metric is not exported.
        """
        if name not in self.series and not self._counts_nothing_yet(name):
            raise MissingMetricError(name)
        return tuple(
            series
            for series in self.series.get(name, ())
            if all(series.labels.get(label) == value for label, value in labels.items())
        )

    def last(self, name: str, **labels: str) -> float:
        """The newest value, summed over the series."""
        return sum(series.last for series in self.find(name, **labels))

    def values(self, name: str, **labels: str) -> dict[float, float]:
        """Every value by its time, summed over the series."""
        sums: dict[float, float] = {}
        for series in self.find(name, **labels):
            for time, value in series.points.items():
                sums[time] = sums.get(time, 0.0) + value
        return dict(sorted(sums.items()))

    def mean(self, name: str, **labels: str) -> float:
        """Mean over the span.

        Raises:
            MissingMetricError: there is no value at all.
        """
        values = self.values(name, **labels)
        if not values:
            raise MissingMetricError(name)
        return sum(values.values()) / len(values)

    def while_running(self, name: str) -> list[float]:
        """The values of a gauge at the times at which requests ran."""
        running = self.values(RUNNING)
        return [value for time, value in self.values(name).items() if running.get(time)]

    def increase(self, name: str, **labels: str) -> float:
        """By how much a counter rose within the span."""
        return sum(self._increase(series) for series in self.find(name, **labels))

    def increase_by(self, name: str, label: str) -> dict[str, float]:
        """By how much a counter rose within the span, by a label; only what rose."""
        sums: dict[str, float] = {}
        for series in self.find(name):
            value = series.labels.get(label, "")
            sums[value] = sums.get(value, 0.0) + self._increase(series)
        return {value: rise for value, rise in sums.items() if rise > 0}

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The observations within the span, or since the start if there were none."""
        inside: dict[float, float] = {}
        ever: dict[float, float] = {}
        for series in self.find(f"{name}_bucket", **labels):
            bound = float(series.labels["le"])
            inside[bound] = inside.get(bound, 0.0) + self._increase(series)
            ever[bound] = ever.get(bound, 0.0) + series.last
        recent = Histogram(tuple(sorted(inside.items())), self.increase(f"{name}_sum", **labels))
        if recent.count:
            return recent
        return Histogram(tuple(sorted(ever.items())), self.last(f"{name}_sum", **labels), True)

    def label(self, name: str, label: str) -> str:
        """A label of an info metric, of the series that is newest.

        Raises:
            MissingMetricError: there is no such metric, or no such label.
        """
        found = [series for series in self.find(name) if series.last]
        if not found:
            raise MissingMetricError(name)
        newest = max(found, key=lambda series: series.end)
        if label not in newest.labels:
            raise MissingMetricError(f"{name}{{{label}}}")
        return newest.labels[label]

    def _increase(self, series: Series) -> float:
        # A label value that comes up within the span has counted from 0.
        born = series.points[series.begin] if series.begin > self.begin else 0.0
        return series.increase + born

    def _counts_nothing_yet(self, name: str) -> bool:
        """Whether a metric of ours is described, and has no series for want of a label's value."""
        metric = _COUNTING.get(name)
        if metric is None or not self.has_growpage:
            return False
        return metric.name in self.declared or name in self.declared


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself beside its metrics."""

    vllm_version: str | None
    models: tuple[str, ...]
    routes: bool = False
    """Whether growpage's own routes answer, so that its plugins are loaded whatever the metrics."""


@dataclass(frozen=True)
class TargetFacts:
    """What Prometheus says of its targets."""

    up: int
    down: tuple[str, ...] = ()
    """Instances that cannot be scraped now."""
    gone: tuple[str, ...] = ()
    """Engines that reported within the span and do not any more."""


@dataclass(frozen=True)
class Evidence:
    """Everything that a diagnosis goes by."""

    source: str
    """Where it is from, and of what span of time, for the reader."""
    engines: tuple[Engine, ...]
    server: ServerFacts | None = None
    targets: TargetFacts | None = None

    def growpage_engines(self) -> Iterator[Engine]:
        """Those that export metrics of growpage."""
        return (engine for engine in self.engines if engine.has_growpage)


@dataclass
class EngineBuilder:
    """Collects an engine's series point by point."""

    name: str
    model: str = ""
    points: dict[str, dict[tuple[tuple[str, str], ...], dict[float, float]]] = field(
        default_factory=dict
    )

    def add(self, name: str, labels: Mapping[str, str], time: float, value: float) -> None:
        """Take down one sample; a NaN says nothing and is left out."""
        if not math.isnan(value):
            series = self.points.setdefault(name, {})
            series.setdefault(tuple(sorted(labels.items())), {})[time] = value
        self.model = self.model or labels.get("model_name", "")

    def build(self, declared: frozenset[str]) -> Engine:
        """The engine, once every sample is in; samples must have come in order of time."""
        series = {
            name: tuple(Series(dict(labels), points) for labels, points in several.items())
            for name, several in self.points.items()
        }
        return Engine(self.name, self.model, series, declared)
