"""Whatever the series do, the limits hold: random gaps, NaN, resets, duplicates and dead pods."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, nan

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from growpage.fleet.config import Policy
from growpage.fleet.decide import Situation, decide
from growpage.fleet.decision import Action, DataState
from growpage.fleet.metric_names import Signal
from growpage.fleet.prometheus import Sample
from growpage.fleet.signals import Limits, by_pod, observe
from growpage.fleet.stabilisation import ChangeLog
from growpage.fleet.targets import Replicas
from tests.fleet.fleets import TARGET, answers, series

QUICK = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

STEP = 15.0
POLICY = Policy(
    min_replicas=2,
    max_replicas=6,
    max_age_seconds=40,
    usage_window_seconds=30,
    queue_seconds=30,
    scale_out_window_seconds=15,
    scale_in_window_seconds=60,
    scale_in_period_seconds=15,
    scale_out_period_seconds=30,
    scale_out_step=2,
    scale_out_step_percent=50,
    prediction_seconds=90,
    cold_start_seconds=60,
    reversal_limit=2,
    reversal_window_seconds=300,
)
LIMITS = Limits(POLICY.max_age_seconds, POLICY.usage_window_seconds, POLICY.scale_in_usage)
GRID = 10
SCRAPES = GRID + 4

usages = st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5, 0.9, 1.0, nan, -1.0, 7.0, None])
queues = st.sampled_from([0.0, 0.0, 0.0, 3.0, 40.0, nan, None])
ups = st.sampled_from([1.0, 1.0, 1.0, 1.0, 0.0, None])


def mostly_steady(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[float | None]]:
    """A value that is kept, with some scrapes that differ."""
    return st.builds(
        lambda base, odd: [odd.get(number, base) for number in range(SCRAPES)],
        values,
        st.dictionaries(st.integers(0, SCRAPES - 1), values, max_size=2),
    )


def samples(values: list[float | None], now: float) -> list[Sample]:
    ages = range(SCRAPES - 1, -1, -1)
    return [
        (now - STEP * age, value)
        for age, value in zip(ages, values, strict=True)
        if value is not None
    ]


pod_values = st.fixed_dictionaries(
    {
        Signal.UP: mostly_steady(ups),
        Signal.KV_USAGE: mostly_steady(usages),
        Signal.RUNNING: mostly_steady(queues),
        Signal.WAITING: mostly_steady(queues),
        Signal.PREEMPTIONS: mostly_steady(st.sampled_from([0.0, 0.0, 5.0, 9.0, nan, None])),
    }
)

idle_values = st.fixed_dictionaries(
    {
        signal: st.builds(
            lambda odd, rest=rest: [odd.get(number, rest) for number in range(SCRAPES)],
            st.dictionaries(st.integers(0, SCRAPES - 1), values, max_size=1),
        )
        for signal, rest, values in (
            (Signal.UP, 1.0, st.just(1.0)),
            (Signal.KV_USAGE, 0.05, usages),
            (Signal.RUNNING, 1.0, queues),
            (Signal.WAITING, 0.0, queues),
            (Signal.PREEMPTIONS, 5.0, st.just(None)),
        )
    }
)


@QUICK
@given(
    pods=st.one_of(
        st.lists(pod_values, min_size=1, max_size=4), st.lists(idle_values, min_size=3, max_size=4)
    ),
    ghosts=st.lists(pod_values, max_size=2),
    duplicated=st.booleans(),
    replicas=st.none() | st.integers(0, 9),
    pending=st.integers(0, 2),
    warned=st.sampled_from([False, False, False, True]),
)
def test_one_decision_keeps_all_limits(
    pods: list[dict[Signal, list[float | None]]],
    ghosts: list[dict[Signal, list[float | None]]],
    duplicated: bool,
    replicas: int | None,
    pending: int,
    warned: bool,
) -> None:
    now = 10_000.0
    live = [f"p{number}" for number in range(len(pods))]
    if replicas is None:
        replicas, pending = len(pods), 0
    named = [*zip(live, pods, strict=True), *((f"g{n}", each) for n, each in enumerate(ghosts))]
    table = {
        signal: [
            series(found, pod=name, **({"prometheus_replica": copy} if copy else {}))
            for name, values in named
            for copy in (["0", "1"] if duplicated else [""])
            if (found := samples(values[signal], now))
        ]
        for signal in pods[0]
    }
    history = observe(
        by_pod(answers(table), pod_label="pod", live=live),
        [now - STEP * ago for ago in reversed(range(GRID))],
        LIMITS,
        starting=pending,
        warnings=["a store did not answer"] if warned else [],
    )
    situation = Situation(
        "smol",
        TARGET,
        replicas=Replicas(replicas, replicas - pending, pending, tuple(live)),
        history=history,
    )
    decision = decide(situation, POLICY)
    assert decide(situation, POLICY) == decision
    event(f"{decision.action}, data {decision.state}")
    assert decision.desired is not None
    if decision.action is not Action.NO_ACTION:
        assert POLICY.min_replicas <= decision.desired
        assert decision.desired <= max(POLICY.max_replicas, replicas - 1)
    if decision.action is Action.SCALE_OUT and replicas >= POLICY.min_replicas:
        assert decision.desired - replicas <= max(POLICY.scale_out_step, replicas // 2)
        assert decision.state in (DataState.FRESH, DataState.PARTIAL)
    if decision.action is Action.SCALE_IN:
        assert replicas - decision.desired <= POLICY.scale_in_step
        assert decision.state is DataState.FRESH
        assert not warned
        if replicas <= POLICY.max_replicas:
            for values in pods:
                _assert_good_and_idle(values)


def _assert_good_and_idle(values: dict[Signal, list[float | None]]) -> None:
    """Every value that was scraped lately is there and says so; written without our own code."""
    window = round(POLICY.scale_in_window_seconds / STEP) + 1
    allowed = int(POLICY.max_age_seconds // STEP) + 1
    for signal in (Signal.KV_USAGE, Signal.RUNNING, Signal.WAITING):
        for end in range(SCRAPES - window + 1, SCRAPES + 1):
            seen = [value for value in values[signal][end - allowed : end] if value is not None]
            assert seen, "a gap"
            assert isfinite(seen[-1])
            assert seen[-1] >= 0
            if signal is Signal.WAITING:
                assert seen[-1] == 0
    assert [value for value in values[Signal.UP] if value is not None][-1] == 1


class FleetUnderTest:
    """Pods that share a load evenly, and take a while to start; scraped by a faulty Prometheus."""

    START = 3

    def __init__(self) -> None:
        self.born: dict[str, int] = {}
        self.samples: dict[Signal, dict[str, list[Sample]]] = {signal: {} for signal in Signal}
        self.number = 0

    def scale(self, replicas: int, step: int) -> None:
        while len(self.born) < replicas:
            self.born[f"p{self.number}"] = step
            self.number += 1
        for name in sorted(self.born)[replicas:]:
            del self.born[name]

    def ready(self, step: int) -> list[str]:
        return [name for name, born in self.born.items() if step - born >= self.START]

    def scrape(self, step: int, load: float, fault: str) -> None:
        now = step * STEP
        pods = self.ready(step)
        if fault == "gap":
            return
        for name in pods if fault != "ghost" else [*pods, "ghost"]:
            share = min(1.0, load / max(1, len(pods)))
            bad = fault == "nan" and name == pods[0]
            waiting = max(0.0, load - len(pods)) * 20
            values = {
                Signal.UP: 0.0 if fault == "down" and name == pods[-1] else 1.0,
                Signal.KV_USAGE: nan if bad else share,
                Signal.RUNNING: round(share * 16),
                Signal.WAITING: waiting if share else 0.0,
                Signal.PREEMPTIONS: 0.0 if fault == "reset" else 4.0,
            }
            for signal, value in values.items():
                self.samples[signal].setdefault(name, []).append((now, value))

    def table(self) -> dict[Signal, list[object]]:
        return {
            signal: [series(found[-SCRAPES:], pod=name) for name, found in pods.items()]
            for signal, pods in self.samples.items()
        }


@settings(parent=QUICK, max_examples=20)
@given(
    loads=st.lists(st.floats(0, 8), min_size=4, max_size=12),
    hold=st.integers(2, 8),
    faults=st.lists(
        st.sampled_from(["", "", "", "", "gap", "nan", "down", "ghost", "reset"]),
        min_size=8,
        max_size=40,
    ),
)
def test_a_fleet_that_follows_the_decisions_turns_seldom(
    loads: list[float], hold: int, faults: list[str]
) -> None:
    fleet = FleetUnderTest()
    log = ChangeLog(POLICY)
    current = POLICY.min_replicas
    turns: list[tuple[int, int]] = []
    fleet.scale(current, -FleetUnderTest.START)
    for step in range(min(len(loads) * hold, 60)):
        fleet.scrape(step, loads[step // hold], faults[step % len(faults)])
        log.note(step * STEP, current)
        ready = fleet.ready(step)
        history = observe(
            by_pod(answers(fleet.table()), pod_label="pod", live=fleet.born),
            [step * STEP - STEP * ago for ago in reversed(range(GRID))],
            LIMITS,
            starting=len(fleet.born) - len(ready),
        )
        replicas = Replicas(current, len(ready), current - len(ready), tuple(fleet.born))
        decision = decide(Situation("smol", TARGET, replicas, history, log.changes), POLICY)
        assert decision.desired is not None
        assert POLICY.min_replicas <= decision.desired <= POLICY.max_replicas
        if decision.desired != current:
            event(decision.action)
            turns.append((step, decision.desired - current))
            current = decision.desired
            fleet.scale(current, step)
    _assert_few_reversals(turns)


def _assert_few_reversals(turns: list[tuple[int, int]]) -> None:
    reversals = [
        later for (_, first), (later, second) in pairwise(turns) if (first > 0) != (second > 0)
    ]
    window = POLICY.reversal_window_seconds / STEP
    for begin in reversals:
        within = [each for each in reversals if begin <= each < begin + window]
        assert len(within) <= POLICY.reversal_limit + 1
