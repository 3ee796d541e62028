"""The rules of the decision, one by one."""

from __future__ import annotations

import pytest

from growpage.fleet.decision import Action, DataState
from growpage.fleet.prediction import forecast, theil_sen
from growpage.fleet.stabilisation import Change, ChangeLog, may_add, may_remove, reversals
from growpage.fleet.targets import Replicas
from tests.fleet.fleets import NOW, decided, over_time, pod, policy, steady

IDLE = [pod(name, kv_usage=0.05, running=1.0) for name in "abc"]


@pytest.mark.parametrize(
    ("usage", "pods", "wanted"),
    [(0.84, 3, 3), (0.85, 3, 4), (0.85, 10, 12), (1.0, 3, 4), (1.0, 6, 8)],
)
def test_kv_usage_asks_for_what_brings_it_to_the_target(
    usage: float, pods: int, wanted: int
) -> None:
    history = steady(*(pod(str(number), kv_usage=usage) for number in range(pods)))
    assert decided(history, policy=policy(max_replicas=50)).desired == wanted


def test_the_mean_counts_and_not_the_fullest_pod() -> None:
    assert decided(steady(pod("a", kv_usage=0.99), pod("b", kv_usage=0.4))).desired == 2


def test_the_most_demanding_rule_wins() -> None:
    history = steady(pod("a", kv_usage=0.9, running=8.0, waiting=40.0))
    decision = decided(history)
    assert decision.desired == 5  # by the step limit; 48 requests at 8 a pod are 6
    assert "40 requests wait" in decision.reason
    assert "6 would be needed, but the step limit allows 5" in decision.reason


def test_a_queue_must_last() -> None:
    young = over_time(lambda ago: [pod("a", waiting=30.0 if ago < 4 else 0.0)])
    assert decided(young).action is Action.NO_ACTION
    old = over_time(lambda ago: [pod("a", waiting=30.0 if ago < 8 else 0.0)])
    assert decided(old).action is Action.SCALE_OUT
    at_the_limit = steady(pod("a", waiting=10.0))
    assert decided(at_the_limit).action is Action.NO_ACTION


def test_what_is_wanted_must_last_and_is_said_meanwhile() -> None:
    decision = decided(over_time(lambda ago: [pod("a", kv_usage=0.9 if ago < 2 else 0.5)]))
    assert decision.action is Action.NO_ACTION
    assert "KV usage is 0.90, at least 0.85; not yet for 30 s" in decision.reason


def test_the_least_that_was_wanted_counts() -> None:
    """Half a minute ago the load asked for 7 replicas, and now it asks for 8."""
    history = over_time(
        lambda ago: [pod(str(n), kv_usage=1.0 if ago < 2 else 0.86) for n in range(6)]
    )
    assert decided(history).desired == 7


def test_configured_slots_stand_in_for_those_that_nobody_exports() -> None:
    history = steady(pod("a", kv_usage=0.2, running=31.0))
    assert decided(history).action is Action.NO_ACTION
    assert decided(history, policy=policy(max_num_seqs=32)).action is Action.SCALE_OUT


def test_demand_counts_while_growth_is_refused() -> None:
    """Compression keeps KV usage low; uncompressed the requests would hold twice the pool."""
    compressed = {"kv_usage": 0.6, "logical_tokens": 2000.0, "capacity_tokens": 1000.0}
    refused = steady(pod("a", growth_refused=3.0, **compressed))
    decision = decided(refused)
    assert (decision.action, decision.desired) == (Action.SCALE_OUT, 2)
    assert "uncompressed demand is 2.00" in decision.reason
    assert decided(steady(pod("a", growth_refused=0.0, **compressed))).action is Action.NO_ACTION
    assert decided(refused, policy=policy(demand_target=2)).action is Action.NO_ACTION


def test_compressed_load_must_fit_uncompressed_before_a_scale_in() -> None:
    hidden = [
        pod(
            name,
            kv_usage=0.1,
            growth_refused=0.0,
            logical_tokens=900.0,
            capacity_tokens=1000.0,
        )
        for name in "ab"
    ]
    decision = decided(steady(*hidden))
    assert decision.action is Action.NO_ACTION
    assert "would not fit" in decision.reason


def test_an_idle_fleet_shrinks_by_one_and_says_why() -> None:
    decision = decided(steady(*IDLE))
    assert (decision.action, decision.desired) == (Action.SCALE_IN, 2)
    assert "fits on 2" in decision.reason


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"kv_usage": 0.35}, "KV usage was"),
        ({"waiting": 1.0}, "1 requests waited"),
        ({"preemptions": 1.0}, "requests were preempted"),
        ({"growth_refused": 1.0}, "growth was refused"),
        ({"state": DataState.STALE}, "a gap in the data"),
    ],
)
@pytest.mark.parametrize("ago", [1, 20])
def test_every_condition_must_hold_over_the_whole_window(
    odd: dict[str, float], reason: str, ago: int
) -> None:
    if "kv_usage" in odd:
        odd = {"kv_usage": 1.0}  # of one pod in three
    history = over_time(
        lambda n: [pod("a", **{"kv_usage": 0.05, **(odd if n == ago else {})}), *IDLE[1:]]
    )
    decision = decided(history)
    assert decision.action is Action.NO_ACTION
    assert reason in decision.reason


def test_a_pod_that_is_new_delays_a_scale_in() -> None:
    history = over_time(lambda ago: IDLE if ago < 10 else IDLE[:2])
    assert "a gap in the data" in decided(history).reason


def test_too_short_a_past_delays_a_scale_in() -> None:
    assert "before 300 s have been seen" in decided(steady(*IDLE, count=12)).reason


def test_a_load_that_would_not_fit_stays() -> None:
    """Two pods at 0.29 and 14 of 16 slots: one alone could not run it."""
    history = steady(*(pod(name, kv_usage=0.29, running=7.0, slots=16.0) for name in "ab"))
    assert "would not fit" in decided(history).reason


def test_a_predicted_loss_forbids_a_scale_in_if_a_limit_is_set() -> None:
    lossy = steady(*(pod(name, kv_usage=0.05, predicted_loss=0.2) for name in "ab"))
    assert decided(lossy).action is Action.SCALE_IN
    limited = decided(lossy, policy=policy(max_predicted_loss=0.1))
    assert "the predicted loss exceeded 0.1" in limited.reason


def test_more_than_the_maximum_shrinks_on_good_data_only() -> None:
    busy = [pod(str(number), kv_usage=0.6) for number in range(12)]
    assert decided(steady(*busy)).desired == 11
    assert decided(steady(*busy, warnings=("store",))).desired == 12


def test_the_maximum_is_never_exceeded() -> None:
    full = [pod(str(number), kv_usage=1.0) for number in range(9)]
    decision = decided(steady(*full))
    assert decision.desired == 10
    assert "12 would be needed, but max_replicas allows 10" in decision.reason
    at_the_top = decided(steady(*full, pod("9", kv_usage=1.0)))
    assert at_the_top.action is Action.NO_ACTION
    assert "max_replicas is reached" in at_the_top.reason


def test_without_a_count_of_replicas_nothing_is_decided() -> None:
    from growpage.fleet.decide import Situation, decide
    from tests.fleet.fleets import POLICY, TARGET

    decision = decide(Situation("smol", TARGET, None, steady(*IDLE)), POLICY)
    assert (decision.action, decision.current, decision.desired) == (Action.NO_ACTION, None, None)


def test_steps_do_not_add_up_within_a_period() -> None:
    rules = policy(scale_out_step=2, scale_out_step_percent=50)
    recent = [Change(NOW - 30, 8, 10)]
    assert may_add(10, recent, NOW, rules) == 2  # half of 8, less the 2 that were added
    assert may_add(10, [Change(NOW - 61, 8, 10)], NOW, rules) == 5
    assert may_remove([Change(NOW - 30, 4, 3)], NOW, rules) == 0
    assert may_remove([Change(NOW - 61, 4, 3)], NOW, rules) == 1
    history = steady(*IDLE)
    assert decided(history, changes=[Change(NOW - 30, 4, 3)]).action is Action.NO_ACTION


def test_changes_are_counted_whoever_made_them() -> None:
    log = ChangeLog(policy(reversal_window_seconds=100))
    for time, replicas in enumerate([2, 2, 3, 3, 2, 4]):
        log.note(float(time), replicas)
    assert [(each.before, each.after) for each in log.changes] == [(2, 3), (3, 2), (2, 4)]
    assert reversals(log.changes, since=-1) == 2
    log.note(1000.0, 4)
    assert len(log.changes) == 1


def test_theil_sen_is_not_moved_by_outliers() -> None:
    line = [(float(t), 0.1 + 0.01 * t) for t in range(20)]
    spoiled = [(t, 5.0 if t >= 17.0 else value) for t, value in line]
    assert theil_sen(line) == pytest.approx(0.01)
    assert theil_sen(spoiled) == pytest.approx(0.01)
    assert theil_sen(line[:1]) is None


def test_a_forecast_needs_time_and_a_rise() -> None:
    rising = [(15.0 * n, 0.3 + 0.03 * n) for n in range(11)]
    expected = forecast(rising, least_span=150, horizon=300)
    assert expected is not None
    assert expected.seconds_to_full == pytest.approx(200)
    assert expected.usage == pytest.approx(1.2)
    assert forecast(rising, least_span=151, horizon=300) is None
    assert forecast(rising, least_span=150, horizon=190) is None
    assert forecast([(t, 0.8 - v) for t, v in rising], least_span=150, horizon=300) is None


def test_replicas_of_which_some_are_pending_do_not_shrink() -> None:
    decision = decided(steady(*IDLE), Replicas(3, 2, 1, ()))
    assert "pods come and go" in decision.reason
