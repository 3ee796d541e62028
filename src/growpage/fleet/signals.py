"""From Prometheus' samples to observations: which samples count, for which pod, and how far.

Four things make samples lie, and each is dealt with here: two Prometheuses that scrape the same
pods (one series of each pod and engine is taken), pods that are gone (joined with the live ones),
samples that are old or no numbers (the pod's state says so), and gauges that nobody refreshes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Final

from growpage.fleet.decision import DataState
from growpage.fleet.metric_names import Signal
from growpage.fleet.observation import Observation, PodLoad
from growpage.fleet.prometheus import Answer, Sample, Series

Samples = Sequence[Sample]
Key = tuple[str, str, str]
"""Pod, engine, reason: what makes two series different. Other labels say who scraped them."""

REQUIRED: Final = (Signal.KV_USAGE, Signal.RUNNING, Signal.WAITING)
"""Without these nothing is known of a pod."""

CAPACITY: Final = "capacity"
"""The only reason to wait that more replicas cure; others are a LoRA or a transfer to come."""


@dataclass(frozen=True)
class Limits:
    """When samples count.

    Attributes:
        max_age: older ones are stale, in seconds.
        usage_window: KV usage is the maximum over so many seconds.
        idle_usage: KV usage from here on contradicts a pod that runs nothing.
    """

    max_age: float
    usage_window: float
    idle_usage: float


@dataclass
class PodSeries:
    """The samples of one pod, by signal, engine and reason."""

    of: dict[Signal, dict[Key, Samples]] = field(default_factory=lambda: defaultdict(dict))

    def first_seen(self) -> float | None:
        """When the pod first reported its load."""
        times = [
            samples[0][0]
            for signal in REQUIRED
            for samples in self.of.get(signal, {}).values()
            if samples
        ]
        return min(times, default=None)


def pod_of(labels: Mapping[str, str], pod_label: str) -> str | None:
    """The pod that a series is of; its address if pods are not named, None if it has none."""
    return labels.get(pod_label) or labels.get("instance")


def by_pod(
    answers: Mapping[Signal, Sequence[Answer]], *, pod_label: str, live: Iterable[str]
) -> dict[str, PodSeries]:
    """The samples of each live pod; those of all others are dropped.

    Args:
        answers: for each signal, one answer a name, the name to prefer first.
        pod_label: the label that names a pod.
        live: the pods that there are.
    """
    pods = {name: PodSeries() for name in live}
    for signal, alternatives in answers.items():
        newest: dict[str, float] = {}
        for answer in alternatives:
            found: dict[str, dict[Key, Samples]] = defaultdict(dict)
            for key, candidates in _grouped(answer.series, pod_label).items():
                found[key[0]][key] = _one_of(candidates)
            for name, series in found.items():
                last = max(samples[-1][0] for samples in series.values())
                # A pod uses one name; after an update it is the one that is still written.
                if name in pods and last > newest.get(name, float("-inf")):
                    pods[name].of[signal] = series
                    newest[name] = last
    return pods


def _grouped(series: Iterable[Series], pod_label: str) -> dict[Key, list[Samples]]:
    groups: dict[Key, list[Samples]] = defaultdict(list)
    for each in series:
        name = pod_of(each.labels, pod_label)
        if name is not None and each.samples:
            key = (name, each.labels.get("engine", ""), each.labels.get("reason", ""))
            groups[key].append(each.samples)
    return groups


def _one_of(candidates: Sequence[Samples]) -> Samples:
    """One of several series of the same thing: the fullest of those that are still written."""
    newest = max(samples[-1][0] for samples in candidates)
    current = [
        samples for samples in candidates if newest - samples[-1][0] <= 1.5 * _spacing(samples)
    ]
    return max(current or candidates, key=lambda samples: (len(samples), samples[-1][0]))


def _spacing(samples: Samples) -> float:
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(samples)]
    return median(gaps) if gaps else 0.0


def observe(
    pods: Mapping[str, PodSeries],
    times: Sequence[float],
    limits: Limits,
    *,
    starting: int = 0,
    warnings: Iterable[str] = (),
) -> tuple[Observation, ...]:
    """What was known of the pods at each of these times, evenly spaced and ascending.

    Args:
        pods: the live pods, with what is known of them.
        times: seconds since the epoch; the last is now.
        limits: when samples count.
        starting: live pods that are not ready yet, from which nothing is expected.
        warnings: why the data may be less than all.
    """
    seen = {name: series.first_seen() for name, series in pods.items()}
    silent = sum(1 for first in seen.values() if first is None)
    unreported = max(0, silent - starting)
    step = times[1] - times[0] if len(times) > 1 else limits.usage_window
    return tuple(
        Observation(
            time=now,
            pods=tuple(
                read_pod(name, pods[name], now, step, limits)
                for name, first in sorted(seen.items())
                if first is not None and first <= now
            ),
            unreported=unreported,
            warnings=tuple(warnings),
        )
        for now in times
    )


def read_pod(name: str, series: PodSeries, now: float, step: float, limits: Limits) -> PodLoad:
    """The load of a pod at ``now``, from samples that are no younger."""
    reader = _Reader(series, now, limits)
    confirmed, doubt = reader.scraped()
    if doubt and not confirmed and reader.is_down:
        return PodLoad(name, DataState.STALE, doubt, confirmed=False)
    usage = reader.gauges(Signal.KV_USAGE)
    running = reader.gauges(Signal.RUNNING)
    waiting = reader.gauges(Signal.WAITING)
    for reading in (usage, running, waiting):
        if reading.state is not DataState.FRESH:
            return PodLoad(name, reading.state, reading.problem, confirmed=confirmed)
    latest = max(usage.values)
    if latest > 1.0 + 1e-6:
        problem = f"KV usage is {latest:g}, but a share is at most 1"
        return PodLoad(name, DataState.INVALID, problem, confirmed=confirmed)
    idle = not sum(running.values) and not sum(waiting.values)
    if idle and latest >= limits.idle_usage:
        problem = f"KV usage stands at {latest:.2f} with nothing running or waiting"
        return PodLoad(name, DataState.INVALID, problem, confirmed=confirmed)
    return PodLoad(
        pod=name,
        state=DataState.FRESH,
        problem=doubt,
        confirmed=confirmed,
        kv_usage=reader.peak(Signal.KV_USAGE),
        waiting=_waiting_for_capacity(reader, sum(waiting.values)),
        running=sum(running.values),
        slots=reader.sum_of(Signal.MAX_NUM_SEQS),
        preemptions=reader.increase(Signal.PREEMPTIONS, step),
        growth_refused=reader.increase(Signal.GROWTH_REFUSED, step),
        logical_tokens=reader.sum_of(Signal.LOGICAL_TOKENS),
        capacity_tokens=reader.sum_of(Signal.CAPACITY_TOKENS),
        predicted_loss=_mean_loss(reader, step),
        age_seconds=max(usage.age, running.age, waiting.age),
    )


@dataclass(frozen=True)
class _Reading:
    """The newest values of one signal of a pod, one an engine."""

    state: DataState
    values: tuple[float, ...] = ()
    age: float = 0.0
    problem: str = ""


class _Reader:
    """Reads a pod's samples as they were known at one moment."""

    def __init__(self, series: PodSeries, now: float, limits: Limits) -> None:
        self._series = series
        self._now = now
        self._limits = limits
        self.is_down = False

    def scraped(self) -> tuple[bool, str]:
        """Whether the last scrape reached the pod, and why that is in doubt."""
        newest = [_until(samples, self._now)[-1:] for samples in self._all(Signal.UP).values()]
        found = [each[0] for each in newest if each]
        if not found:
            return False, "there is no `up` for it"
        when, value = max(found)
        if self._now - when > self._limits.max_age:
            return False, f"`up` is {self._now - when:.0f} s old"
        self.is_down = value != 1
        return (False, "its last scrape failed (`up` is 0)") if self.is_down else (True, "")

    def gauges(self, signal: Signal) -> _Reading:
        """The newest value of each engine that has ever reported."""
        ages, values = [], []
        for samples in self._all(signal).values():
            known = _until(samples, self._now)
            if not known:
                continue
            when, value = known[-1]
            if not isfinite(value) or value < 0:
                return _Reading(DataState.INVALID, problem=f"{signal} is {value:g}")
            ages.append(self._now - when)
            values.append(value)
        if not values:
            return _Reading(DataState.ABSENT, problem=f"there is no {signal}")
        if max(ages) > self._limits.max_age:
            return _Reading(DataState.STALE, problem=f"{signal} is {max(ages):.0f} s old")
        return _Reading(DataState.FRESH, tuple(values), max(ages))

    def peak(self, signal: Signal) -> float:
        """The largest value of any engine in the usage window; the newest one counts always."""
        begin = self._now - self._limits.usage_window
        return max(
            value
            for samples in self._all(signal).values()
            for position, (when, value) in enumerate(reversed(_until(samples, self._now)))
            if (position == 0 or when > begin) and 0 <= value <= 1.0 + 1e-6
        )

    def sum_of(self, signal: Signal) -> float | None:
        """The sum over the engines, if every one of them is fresh."""
        reading = self.gauges(signal)
        return sum(reading.values) if reading.state is DataState.FRESH else None

    def by_reason(self) -> Mapping[str, float]:
        """Waiting requests by reason, summed over the engines; empty if unknown."""
        reading = self.gauges(Signal.WAITING_BY_REASON)
        if reading.state is not DataState.FRESH:
            return {}
        reasons: dict[str, float] = defaultdict(float)
        for (_, _, reason), samples in self._all(Signal.WAITING_BY_REASON).items():
            known = _until(samples, self._now)
            if known:
                reasons[reason] += known[-1][1]
        return reasons

    def increase(self, signal: Signal, seconds: float) -> float | None:
        """How much a counter grew in the last seconds, over its restarts; None if unknown."""
        if self.gauges(signal).state is not DataState.FRESH:
            return None
        begin = self._now - seconds
        grown = 0.0
        for samples in self._all(signal).values():
            known = [sample for sample in _until(samples, self._now) if isfinite(sample[1])]
            for (_, before), (when, value) in pairwise(known):
                if when > begin:
                    # A counter that fell was reset, and has grown from zero since.
                    grown += value - before if value >= before else value
        return grown

    def _all(self, signal: Signal) -> Mapping[Key, Samples]:
        return self._series.of.get(signal, {})


def _until(samples: Samples, now: float) -> Samples:
    return samples[: bisect_right(samples, now, key=lambda sample: sample[0])]


def _waiting_for_capacity(reader: _Reader, all_waiting: float) -> float:
    """Of the reason `capacity`, where vLLM says the reason; all that wait where it does not."""
    return reader.by_reason().get(CAPACITY, all_waiting)


def _mean_loss(reader: _Reader, step: float) -> float | None:
    """Mean predicted loss of the compressions since the last observation; None if there were none.

    No compression is no loss to speak of, and not 0/0.
    """
    count = reader.increase(Signal.LOSS_COUNT, step)
    lost = reader.increase(Signal.LOSS_SUM, step)
    return lost / count if count and lost is not None else None
