"""Who decides in a simulation: this autoscaler, a plain HPA, and the rule of thumb."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from growpage.fleet.config import Policy
from growpage.fleet.decide import Situation, decide
from growpage.fleet.metric_names import Signal
from growpage.fleet.observation import Observation
from growpage.fleet.signals import Limits, PodSeries, read_pod
from growpage.fleet.stabilisation import ChangeLog
from growpage.fleet.targets import Replicas, Target


@dataclass(frozen=True)
class View:
    """What a scaler may know at one moment.

    Attributes:
        now: seconds since the begin.
        replicas: as Kubernetes counts them.
        series: the samples of each live pod, up to now.
        measured: whether the last scrape worked.
        cold_start: 90th percentile of creation to ready, in seconds.
    """

    now: float
    replicas: Replicas
    series: dict[str, PodSeries]
    measured: bool
    cold_start: float


class Scaler(Protocol):
    """Decides how many replicas there should be."""

    name: str

    def replicas(self, view: View) -> int:
        """The number of replicas to ask for from now on."""


class GrowPageScaler:
    """This autoscaler: the same observations and the same decision as on a real fleet."""

    name = "growpage"

    def __init__(self, policy: Policy, interval: float) -> None:
        self._policy = policy
        self._interval = interval
        self._limits = Limits(
            policy.max_age_seconds, policy.usage_window_seconds, policy.scale_in_usage
        )
        length = ceil(policy.history_seconds(interval) / interval) + 1
        self._history: deque[Observation] = deque(maxlen=length)
        self._changes = ChangeLog(policy)

    def replicas(self, view: View) -> int:
        """As decided."""
        observation = Observation(
            view.now,
            tuple(
                read_pod(name, series, view.now, self._interval, self._limits)
                for name, series in sorted(view.series.items())
                if series.first_seen() is not None
            ),
        )
        self._history.append(observation)
        self._changes.note(view.now, view.replicas.desired)
        decision = decide(
            Situation(
                model="simulated",
                target=Target("simulated", "Deployment", "simulated"),
                replicas=view.replicas,
                history=_without_the_gone(self._history, view.replicas.pods),
                changes=self._changes.changes,
                cold_start=view.cold_start,
            ),
            self._policy,
        )
        return view.replicas.desired if decision.desired is None else decision.desired


class HpaScaler:
    """A plain HorizontalPodAutoscaler on mean KV usage, with Kubernetes' defaults.

    Tolerance 0.1, no stabilisation out and 300 s in, at most 4 pods or 100% more in 15 s; pods that
    are not ready count as idle when it grows (podautoscaler/replica_calculator.go).
    """

    name = "hpa"
    tolerance = 0.1
    stabilisation = 300.0

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._recommended: list[tuple[float, int]] = []

    def replicas(self, view: View) -> int:
        """By the formula; without metrics, as before."""
        current = view.replicas.desired
        usages = _latest_usages(view)
        if not view.measured or not usages:
            return current
        desired = self._by_formula(usages, view.replicas, self._policy.target_usage)
        since = view.now - self.stabilisation
        self._recommended = [each for each in self._recommended if each[0] > since]
        self._recommended.append((view.now, desired))
        if desired < current:
            desired = min(current, max(replicas for _, replicas in self._recommended))
        desired = min(desired, current + max(4, current))
        return min(self._policy.max_replicas, max(self._policy.min_replicas, desired))

    def _by_formula(self, usages: Sequence[float], replicas: Replicas, target: float) -> int:
        ratio = sum(usages) / len(usages) / target
        if abs(ratio - 1) <= self.tolerance:
            return replicas.desired
        if ratio < 1 or not replicas.pending:
            return ceil(ratio * len(usages))
        counted = len(usages) + replicas.pending
        diluted = sum(usages) / counted / target
        if diluted <= 1 + self.tolerance:
            return replicas.desired
        return ceil(diluted * counted)


class SimpleScaler:
    """The rule of thumb: one more at 0.85 or with more than 10 waiting, one less below 0.30."""

    name = "simple"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def replicas(self, view: View) -> int:
        """One more, one less, or the same; without metrics the same."""
        current = view.replicas.desired
        usages = _latest_usages(view)
        if not view.measured or not usages:
            return current
        usage = sum(usages) / len(usages)
        waiting = sum(_latest(series, Signal.WAITING) for series in view.series.values())
        if usage >= 0.85 or waiting > 10:
            current += 1
        elif usage < 0.30 and waiting == 0:
            current -= 1
        return min(self._policy.max_replicas, max(self._policy.min_replicas, current))


def _latest_usages(view: View) -> list[float]:
    return [
        _latest(series, Signal.KV_USAGE)
        for series in view.series.values()
        if series.first_seen() is not None
    ]


def _latest(series: PodSeries, signal: Signal) -> float:
    return sum(samples[-1][1] for samples in series.of.get(signal, {}).values())


def _without_the_gone(
    history: Sequence[Observation], live: Sequence[str]
) -> tuple[Observation, ...]:
    """As the join with the live pods does: what is gone has no past either."""
    names = frozenset(live)
    return tuple(
        Observation(each.time, tuple(pod for pod in each.pods if pod.pod in names))
        for each in history
    )
