"""Runs one load under several scalers, and says what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any

from growpage.fleet.config import Policy
from growpage.fleet.simulate.replicas import ReplicaModel, SimulatedFleet
from growpage.fleet.simulate.scalers import (
    GrowPageScaler,
    HpaScaler,
    Scaler,
    SimpleScaler,
    View,
)
from growpage.fleet.simulate.workloads import Workload
from growpage.fleet.targets import Replicas

INTERVAL = 15.0
"""Seconds between two scrapes, and between two decisions of every scaler."""

WARM_UP = 300
"""Seconds before the begin."""


@dataclass(frozen=True)
class Moment:
    """One moment of a run.

    Attributes:
        seconds: since the begin.
        rate: requests a second that come.
        desired: replicas asked for.
        ready: replicas that serve.
        usage: mean KV usage of these.
        waiting: requests that wait.
        measured: whether there were metrics.
    """

    seconds: float
    rate: float
    desired: int
    ready: int
    usage: float
    waiting: int
    measured: bool


@dataclass
class Result:
    """What one scaler made of a load.

    Attributes:
        scaler: its name.
        requests: that came.
        missed: share of them that waited longer than the objective, or found no replica.
        longest_wait: of a request that was served, in seconds.
        replica_hours: from creation to the end of draining.
        scale_outs: decisions to grow.
        scale_ins: decisions to shrink.
        reversals: changes of direction.
        moments: the run, one moment an interval.
    """

    scaler: str
    requests: int = 0
    missed: float = 0.0
    longest_wait: float = 0.0
    replica_hours: float = 0.0
    scale_outs: int = 0
    scale_ins: int = 0
    reversals: int = 0
    moments: list[Moment] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """In plain types."""
        return asdict(self)


def scalers(policy: Policy) -> Iterator[Scaler]:
    """The three that are compared, with the same limits."""
    yield GrowPageScaler(policy, INTERVAL)
    yield HpaScaler(policy)
    yield SimpleScaler(policy)


def simulate(
    workload: Workload, policy: Policy, model: ReplicaModel, *, seed: int = 0
) -> list[Result]:
    """The same requests under every scaler."""
    return [run(workload, scaler, policy, model, seed=seed) for scaler in scalers(policy)]


def run(
    workload: Workload, scaler: Scaler, policy: Policy, model: ReplicaModel, *, seed: int
) -> Result:
    """One load under one scaler, second by second."""
    fleet = SimulatedFleet(model, _replicas_at_start(workload, policy, model), seed)
    result = Result(scaler.name)
    turns: list[int] = []
    _warm_up(fleet, workload, policy)
    for second in range(int(workload.seconds)):
        now = float(second)
        if workload.update_at is not None and second == int(workload.update_at):
            fleet.begin_update()
        arriving = fleet.arrivals(workload.rate(now))
        result.requests += arriving
        fleet.advance(now, arriving)
        result.replica_hours += len(fleet.replicas) / 3600
        if second % int(INTERVAL):
            continue
        measured = workload.measured(now)
        if measured:
            fleet.scrape(now, keep=policy.usage_window_seconds + 2 * INTERVAL)
        desired = scaler.replicas(_view(fleet, now, measured, model.cold_start))
        if desired != fleet.desired:
            turns.append(desired - fleet.desired)
            fleet.scale(desired, now)
        result.moments.append(_moment(fleet, workload, now, measured))
    _sum_up(result, fleet, turns, model.slo_seconds)
    return result


def _warm_up(fleet: SimulatedFleet, workload: Workload, policy: Policy) -> None:
    """The load of the begin, before it counts: an empty fleet would mislead whoever looks first."""
    for second in range(-WARM_UP, 0):
        fleet.advance(float(second), fleet.arrivals(workload.rate(0.0)))
        if second % int(INTERVAL) == 0:
            fleet.scrape(float(second), keep=policy.usage_window_seconds + 2 * INTERVAL)
    fleet.forget()


def _replicas_at_start(workload: Workload, policy: Policy, model: ReplicaModel) -> int:
    """As many as the load of the begin needs, for every scaler."""
    running = workload.rate(0.0) * model.answer_tokens * model.seconds_per_token
    # Long answers run longer, so among those that run the mean answer is twice the mean of all.
    usage = running * (model.prompt_tokens + model.answer_tokens) / model.kv_tokens
    needed = ceil(max(usage, running / model.slots) / policy.target_usage)
    return min(policy.max_replicas, max(policy.min_replicas, needed))


def _view(fleet: SimulatedFleet, now: float, measured: bool, cold_start: float) -> View:
    live, ready = fleet.live(), fleet.ready(now)
    return View(
        now=now,
        replicas=Replicas(
            desired=fleet.desired,
            ready=len(ready),
            pending=len(live) - len(ready),
            pods=tuple(replica.name for replica in live),
        ),
        series={replica.name: replica.series for replica in live},
        measured=measured,
        cold_start=cold_start,
    )


def _moment(fleet: SimulatedFleet, workload: Workload, now: float, measured: bool) -> Moment:
    ready = fleet.ready(now)
    return Moment(
        seconds=now,
        rate=round(workload.rate(now), 3),
        desired=fleet.desired,
        ready=len(ready),
        usage=round(sum(each.usage for each in ready) / max(1, len(ready)), 4),
        waiting=sum(len(each.queue) for each in ready),
        measured=measured,
    )


def _sum_up(
    result: Result, fleet: SimulatedFleet, turns: Sequence[int], slo_seconds: float
) -> None:
    waiting = [replica for replica in fleet.replicas if replica.queue]
    left = sum(len(replica.queue) for replica in waiting)
    late = sum(1 for wait in fleet.waits if wait > slo_seconds)
    # Those that still wait at the end would hide the worst; they are counted as missed.
    result.missed = (late + left + fleet.dropped) / max(1, result.requests)
    result.longest_wait = max(fleet.waits, default=0.0)
    result.replica_hours = round(result.replica_hours, 2)
    result.scale_outs = sum(1 for turn in turns if turn > 0)
    result.scale_ins = sum(1 for turn in turns if turn < 0)
    result.reversals = sum(1 for first, second in pairwise(turns) if (first > 0) != (second > 0))
