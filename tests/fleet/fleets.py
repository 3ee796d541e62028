"""Fleets for tests: series as Prometheus answers them, and observations made directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from growpage.fleet.config import Policy
from growpage.fleet.decide import Situation, decide
from growpage.fleet.decision import DataState, Decision
from growpage.fleet.metric_names import METRICS, Signal
from growpage.fleet.observation import Observation, PodLoad
from growpage.fleet.prometheus import Answer, Sample, Series
from growpage.fleet.signals import Limits, by_pod, observe
from growpage.fleet.stabilisation import Change
from growpage.fleet.targets import Replicas, Target

TARGET = Target("prod", "Deployment", "smol")
STEP = 15.0
NOW = 1_000_000.0
LIMITS = Limits(max_age=60, usage_window=60, idle_usage=0.3)
POLICY = Policy(max_replicas=10, prediction=False)
WINDOW = 24  # observations: more than every window of the default policy


def pod(name: str = "a", **values: Any) -> PodLoad:
    load: dict[str, Any] = {
        "state": DataState.FRESH,
        "kv_usage": 0.5,
        "waiting": 0.0,
        "running": 4.0,
        "preemptions": 0.0,
        "age_seconds": 5.0,
    }
    return PodLoad(name, **{**load, **values})


def lost(name: str, state: DataState = DataState.STALE) -> PodLoad:
    return PodLoad(name, state, "broken")


def steady(*pods: PodLoad, count: int = WINDOW, **values: Any) -> list[Observation]:
    """The same at every moment."""
    return over_time(lambda _: pods, count, **values)


def over_time(
    pods_at: Callable[[int], Sequence[PodLoad]], count: int = WINDOW, **values: Any
) -> list[Observation]:
    """``pods_at`` is given the number of steps before now."""
    return [
        Observation(NOW - STEP * ago, tuple(pods_at(ago)), **values)
        for ago in reversed(range(count))
    ]


def decided(
    history: Sequence[Observation],
    replicas: Replicas | int | None = None,
    policy: Policy = POLICY,
    *,
    changes: Sequence[Change] = (),
    **situation: Any,
) -> Decision:
    """Replicas may be a number, all ready; by default those of the last observation."""
    if replicas is None:
        replicas = len(history[-1].pods)
    if isinstance(replicas, int):
        replicas = Replicas(replicas, replicas, 0, ())
    return decide(
        Situation("smol", TARGET, replicas=replicas, history=history, changes=changes, **situation),
        policy,
    )


def policy(**settings: Any) -> Policy:
    return Policy(**{**POLICY.model_dump(), **settings})


def series(
    samples: Iterable[Sample] | float, *, pod: str = "a", engine: str | None = "0", **labels: str
) -> Series:
    """One series of a pod; a number stands for that value at every scrape of 10 minutes."""
    if isinstance(samples, int | float):
        samples = scraped(lambda _: float(samples))
    names = {"pod": pod, "job": "vllm", "instance": f"{pod}:8000", **labels}
    if engine is not None:
        names["engine"] = engine
    return Series(names, tuple(samples))


def scraped(value: Callable[[float], float], begin: float = 600, end: float = 0) -> list[Sample]:
    """A value every 15 s, from so many seconds ago; ``value`` is given the seconds ago."""
    ages = [age for age in range(600, -1, -15) if end <= age <= begin]
    return [(NOW - age, value(age)) for age in ages]


Table = Mapping[Signal, Sequence[Series]]


def healthy(*pods: str, usage: float = 0.5, running: float = 4, waiting: float = 0) -> Any:
    """The series of pods that are well."""
    return {
        Signal.UP: [series(1, pod=pod, engine=None) for pod in pods],
        Signal.KV_USAGE: [series(usage, pod=pod) for pod in pods],
        Signal.RUNNING: [series(running, pod=pod) for pod in pods],
        Signal.WAITING: [series(waiting, pod=pod) for pod in pods],
        Signal.PREEMPTIONS: [series(0, pod=pod) for pod in pods],
    }


def answers(table: Table) -> dict[Signal, list[Answer]]:
    return {signal: [Answer(METRICS[signal][0], tuple(found))] for signal, found in table.items()}


def observed(
    table: Table, live: Iterable[str], *, count: int = WINDOW, limits: Limits = LIMITS, **more: Any
) -> tuple[Observation, ...]:
    """What is seen of these series now, and before."""
    times = [NOW - STEP * ago for ago in reversed(range(count))]
    return observe(by_pod(answers(table), pod_label="pod", live=live), times, limits, **more)
