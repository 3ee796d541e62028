"""What was seen of a model's pods at one moment: the decision's only view of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum

from growpage.fleet.decision import DataState


@dataclass(frozen=True)
class PodLoad:
    """The load of one pod at one moment. A value is None where there is none; never a guess.

    Attributes:
        pod: its name, or its address where names are unknown.
        state: whether it can be trusted. What is not ``FRESH`` is not read.
        problem: why it is not fresh, or not confirmed; empty if all is well.
        confirmed: whether ``up`` says that the last scrape reached it. Zero load is only believed
            of a confirmed pod.
        kv_usage: the largest share of the KV cache in use lately, 0 to 1, over its engines.
        waiting: requests that wait for capacity, over its engines.
        running: requests that run, over its engines.
        slots: requests that may run at once.
        preemptions: since the observation before.
        growth_refused: times since the observation before that a cache was to grow and could not.
        logical_tokens: what its requests would hold uncompressed.
        capacity_tokens: what its cache can hold.
        predicted_loss: mean share of attention mass lost since the observation before.
        age_seconds: age of its oldest sample that was used.
    """

    pod: str
    state: DataState
    problem: str = ""
    confirmed: bool = True
    kv_usage: float | None = None
    waiting: float | None = None
    running: float | None = None
    slots: float | None = None
    preemptions: float | None = None
    growth_refused: float | None = None
    logical_tokens: float | None = None
    capacity_tokens: float | None = None
    predicted_loss: float | None = None
    age_seconds: float | None = None


@dataclass(frozen=True)
class Observation:
    """All pods of a model that have ever reported, at one moment.

    Attributes:
        time: seconds since the epoch.
        pods: those that reported by then. One that never did is not among them: it is starting.
        unreported: live pods that never reported, though they should have.
        warnings: why the data may be less than all.
    """

    time: float
    pods: tuple[PodLoad, ...]
    unreported: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def fresh(self) -> tuple[PodLoad, ...]:
        """Pods whose load is known."""
        return tuple(pod for pod in self.pods if pod.state is DataState.FRESH)

    @property
    def lost(self) -> int:
        """Pods that reported once and are not known now: they have a load that nobody sees."""
        return len(self.pods) - len(self.fresh)

    @property
    def state(self) -> DataState:
        """Of the whole: how far these data can be trusted."""
        fresh = self.fresh
        if not fresh:
            for state in (DataState.INVALID, DataState.STALE):
                if any(pod.state is state for pod in self.pods):
                    return state
            return DataState.ABSENT
        confirmed = all(pod.confirmed for pod in fresh)
        if self.lost or self.unreported or self.warnings or not confirmed:
            return DataState.PARTIAL
        return DataState.FRESH

    def describe_problems(self, limit: int = 3) -> str:
        """What is wrong with the data, in words; empty if nothing is."""
        problems = [f"{pod.pod}: {pod.problem}" for pod in self.pods if pod.problem]
        if self.unreported:
            problems.append(f"{self.unreported} live pods have no metrics of this model")
        problems += [f"Prometheus warns: {warning}" for warning in self.warnings]
        shown = "; ".join(problems[:limit])
        rest = len(problems) - limit
        return f"{shown}; and {rest} more" if rest > 0 else shown


def total(pods: Iterable[PodLoad], read: Callable[[PodLoad], float | None]) -> float | None:
    """The sum over the pods; None if there are none, or the value of any is unknown."""
    values = [read(pod) for pod in pods]
    known = [value for value in values if value is not None]
    return fsum(known) if values and len(known) == len(values) else None
