"""The ways in which public autoscalers failed, by name; ours must not.

Draining (17) and two controllers on one target (18) are tested with the Kubernetes side.
"""

from __future__ import annotations

from math import nan

import pytest

from growpage.budget.errors import ConfigError
from growpage.fleet.decision import Action, DataState
from growpage.fleet.metric_names import Signal, check_name
from growpage.fleet.stabilisation import Change
from growpage.fleet.targets import Replicas
from tests.fleet.fleets import (
    NOW,
    decided,
    healthy,
    lost,
    observed,
    over_time,
    pod,
    policy,
    scraped,
    series,
    steady,
)


def test_01_nan_is_not_zero() -> None:
    table = healthy("a", "b", usage=0.9)
    table[Signal.KV_USAGE] = [series(nan, pod="a"), series(nan, pod="b")]
    decision = decided(observed(table, ["a", "b"]))
    assert (decision.action, decision.state) == (Action.NO_ACTION, DataState.INVALID)
    assert "kv_usage is nan" in decision.reason


def test_01_no_series_is_not_zero() -> None:
    table = {**healthy("a", "b"), Signal.KV_USAGE: []}
    decision = decided(observed(table, ["a", "b"]), 2)
    assert (decision.action, decision.state) == (Action.NO_ACTION, DataState.ABSENT)


def test_02_an_outage_leaves_no_fewer_than_the_minimum() -> None:
    decision = decided([], 1, policy(min_replicas=3))
    assert (decision.action, decision.desired) == (Action.SCALE_OUT, 3)
    assert decision.state is DataState.ABSENT


def test_03_no_fallback_overrides_a_higher_demand() -> None:
    """Half of the pods are not seen; the other half asks for more than there are."""
    loaded = [pod(name, kv_usage=0.95, running=8.0) for name in "ab"]
    history = steady(*loaded, lost("c"), lost("d"))
    decision = decided(history, 4)
    assert (decision.action, decision.state) == (Action.SCALE_OUT, DataState.PARTIAL)
    assert decision.desired == 5  # 1.9 / 0.75 is 3 for what is seen, and 2 for what is not


def test_04_bad_data_never_swing_between_minimum_and_fallback() -> None:
    """Data that come and go change nothing, in either direction."""
    for gone in range(1, 20):
        history = over_time(
            lambda ago, gone=gone: [lost("a"), lost("b")] if ago < gone else [pod("a"), pod("b")]
        )
        assert decided(history, 5, policy(min_replicas=2)).desired == 5


@pytest.mark.parametrize("replicas", [2, 4, 7])
def test_05_the_load_is_not_divided_by_replicas(replicas: int) -> None:
    """What is needed for a load depends on the load alone, not on how many replicas are asked."""
    history = steady(*(pod(name, kv_usage=0.9, running=8.0) for name in "abcd"))
    decision = decided(history, replicas, policy(scale_in_window_seconds=300))
    needed = 5  # 3.6 / 0.75
    assert decision.desired == max(needed, replicas)


def test_06_a_rolling_surge_does_not_dilute_the_average() -> None:
    """Idle new pods halve the mean usage; the load is the same, and nothing shrinks."""
    old = [pod(name, kv_usage=0.55) for name in "abcd"]
    new = [pod(name, kv_usage=0.0, running=0.0) for name in "efgh"]
    decision = decided(steady(*old, *new), Replicas(4, 8, 0, ()))
    assert decision.action is Action.NO_ACTION
    assert "pods come and go" in decision.reason


def test_07_one_missing_metric_never_scales_in() -> None:
    idle = healthy("a", "b", "c", usage=0.05, running=1)
    assert decided(observed(idle, "abc")).action is Action.SCALE_IN
    for signal in (Signal.KV_USAGE, Signal.RUNNING, Signal.WAITING, Signal.PREEMPTIONS, Signal.UP):
        without = {**idle, signal: idle[signal][:2]}
        decision = decided(observed(without, "abc"), 3)
        assert decision.action is Action.NO_ACTION, signal


def test_08_dead_pods_stale_series_do_not_scale_out() -> None:
    table = healthy("a", "b", usage=0.5)
    ghosts = healthy("x", "y", "z", usage=1.0, running=9, waiting=50)
    both = {signal: [*table[signal], *ghosts[signal]] for signal in table}
    decision = decided(observed(both, ["a", "b"]))
    assert decision.action is Action.NO_ACTION
    assert {each.pod for each in observed(both, ["a", "b"])[-1].pods} == {"a", "b"}


def test_09_missing_is_not_zero_in_a_sum() -> None:
    """A pod that says nothing of its queue is unknown, and not without a queue."""
    table = healthy("a", "b", usage=0.05)
    table[Signal.WAITING] = table[Signal.WAITING][:1]
    history = observed(table, ["a", "b"])
    assert history[-1].pods[1].waiting is None
    assert history[-1].pods[1].state is DataState.ABSENT


def test_10_a_missing_label_is_not_zero() -> None:
    """Waiting requests without the reason are all counted, not none."""
    table = healthy("a", usage=0.5, waiting=12)
    table[Signal.WAITING_BY_REASON] = [series(12, pod="a", engine="0")]
    assert observed(table, "a")[-1].pods[0].waiting == 12
    table[Signal.WAITING_BY_REASON] = [
        series(3, pod="a", reason="capacity"),
        series(9, pod="a", reason="deferred"),
    ]
    assert observed(table, "a")[-1].pods[0].waiting == 3


def test_11_a_counter_without_total_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="did you mean vllm:num_preemptions_total"):
        check_name(Signal.PREEMPTIONS, "vllm:num_preemptions")


def test_12_the_queue_counts_while_kv_usage_is_low() -> None:
    history = steady(pod("a", kv_usage=0.32, waiting=15.0, running=8.0))
    decision = decided(history)
    assert (decision.action, decision.desired) == (Action.SCALE_OUT, 3)
    assert "15 requests wait" in decision.reason


def test_12_slots_count_while_kv_usage_is_low() -> None:
    history = steady(pod("a", kv_usage=0.18, running=8.0, slots=8.0))
    decision = decided(history)
    assert (decision.action, decision.desired) == (Action.SCALE_OUT, 2)
    assert "request slots is 1.00" in decision.reason


def test_13_a_load_on_the_edge_does_not_flap() -> None:
    """One look sees 0.95 and the next 0.2: neither is followed."""
    for phase in (0, 1):
        history = over_time(
            lambda ago, phase=phase: [pod("a", kv_usage=0.95 if (ago + phase) % 2 else 0.2)]
        )
        assert decided(history, 1, policy(min_replicas=1)).action is Action.NO_ACTION


def test_14_pending_pods_are_not_asked_for_again() -> None:
    """Saturated pods keep asking for three more; those have been asked for and are starting."""
    full = [pod(name, kv_usage=1.0, running=8.0, waiting=6.0) for name in "abcd"]
    first = decided(steady(*full), 4)
    assert first.desired == 7  # 24 wait while a pod runs 8
    again = decided(steady(*full), Replicas(7, 4, 3, ()))
    assert again.action is Action.NO_ACTION


def test_15_one_bad_pod_does_not_block_a_scale_out() -> None:
    full = [pod(name, kv_usage=0.97, running=8.0) for name in "abc"]
    decision = decided(steady(*full, lost("d", DataState.INVALID)), 4)
    assert (decision.action, decision.state) == (Action.SCALE_OUT, DataState.PARTIAL)


def test_16_an_idle_fleet_scales_in() -> None:
    """Without requests there is no latency and no loss to divide; present zeros are enough."""
    idle = healthy("a", "b", usage=0.0, running=0)
    idle[Signal.LOSS_SUM] = [series(0, pod=name) for name in "ab"]
    idle[Signal.LOSS_COUNT] = [series(0, pod=name) for name in "ab"]
    history = observed(idle, "ab")
    assert history[-1].pods[0].predicted_loss is None
    decision = decided(history)
    assert (decision.action, decision.desired) == (Action.SCALE_IN, 1)


def test_16_zeros_of_a_pod_that_is_not_reached_are_not_rest() -> None:
    idle = healthy("a", "b", usage=0.0, running=0)
    idle[Signal.UP] = [series(0, pod=name, engine=None) for name in "ab"]
    decision = decided(observed(idle, "ab"))
    assert (decision.action, decision.state) == (Action.NO_ACTION, DataState.STALE)


def test_19_all_engines_of_a_pod_count() -> None:
    table = {
        Signal.UP: [series(1, engine=None)],
        Signal.KV_USAGE: [series(0.9, engine="0"), series(0.1, engine="1")],
        Signal.RUNNING: [series(7, engine="0"), series(2, engine="1")],
        Signal.WAITING: [series(3, engine="0"), series(1, engine="1")],
    }
    for reverse in (False, True):
        ordered = {name: found[::-1] if reverse else found for name, found in table.items()}
        load = observed(ordered, "a")[-1].pods[0]
        assert (load.kv_usage, load.running, load.waiting) == (0.9, 9, 4)


def test_20_stale_is_not_saturated() -> None:
    table = healthy("a", "b", usage=1.0, running=9, waiting=99)
    table = {
        signal: [
            series([(when, value) for when, value in each.samples if when < NOW - 90], pod=name)
            for each, name in zip(found, "ab", strict=True)
        ]
        for signal, found in table.items()
        if signal is not Signal.UP
    } | {Signal.UP: table[Signal.UP]}
    decision = decided(observed(table, "ab"))
    assert (decision.action, decision.state) == (Action.NO_ACTION, DataState.STALE)
    assert "s old" in decision.reason


def test_21_a_gauge_that_is_stuck_without_requests_is_not_load() -> None:
    table = healthy("a", "b", usage=0.99, running=0)
    decision = decided(observed(table, "ab"))
    assert (decision.action, decision.state) == (Action.NO_ACTION, DataState.INVALID)
    assert "0.99 with nothing running or waiting" in decision.reason


def test_22_prediction_reckons_with_the_measured_cold_start() -> None:
    """Usage of 0.5 that rises by 0.12 a minute is full in four minutes."""
    history = over_time(lambda ago: [pod("a", kv_usage=0.5 - ago * 0.03)] if ago < 17 else [])
    predicting = policy(prediction=True)
    slow = decided(history, 1, predicting, cold_start=300.0)
    assert (slow.action, slow.desired) == (Action.SCALE_OUT, 2)
    assert "full in 250 s" in slow.reason
    assert decided(history, 1, predicting, cold_start=100.0).action is Action.NO_ACTION
    unknown = decided(history, 1, predicting, cold_start=None)
    assert unknown.action is Action.NO_ACTION


def test_22_prediction_never_scales_in() -> None:
    falling = over_time(lambda ago: [pod(n, kv_usage=0.35 + ago * 0.02) for n in "ab"])
    assert decided(falling, 2, policy(prediction=True), cold_start=300.0).desired == 2


def test_restart_of_a_counter_is_no_loss_and_no_burst() -> None:
    table = healthy("a")
    table[Signal.PREEMPTIONS] = [series(scraped(lambda age: 90.0 if age > 20 else 2.0))]
    preempted = [each.pods[0].preemptions for each in observed(table, "a")]
    assert sum(value or 0 for value in preempted) == 2


def test_a_freeze_follows_repeated_reversals_and_still_lets_it_grow() -> None:
    turns = [Change(NOW - 400 + 60 * number, 2 + number % 2, 3 - number % 2) for number in range(5)]
    idle = steady(pod("a", kv_usage=0.05), pod("b", kv_usage=0.05))
    frozen = decided(idle, 2, changes=turns)
    assert frozen.action is Action.NO_ACTION
    assert "changes of direction" in frozen.reason
    busy = steady(pod("a", kv_usage=0.95), pod("b", kv_usage=0.95))
    assert decided(busy, 2, changes=turns).action is Action.SCALE_OUT
