"""How many replicas a load asks for: one small rule each, and the most demanding one counts.

All rules count in absolute terms, as the load divided by what a replica should carry. A number
relative to the replicas that there are would grow again with every look while pods are starting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor

from growpage.fleet.config import Policy
from growpage.fleet.observation import Observation, PodLoad, total
from growpage.fleet.prediction import Forecast, forecast

_EPSILON = 1e-9
"""So that exactly three replicas of load do not ask for four, and a threshold that is met is."""


@dataclass(frozen=True)
class Want:
    """A rule's opinion: so many replicas, because of this."""

    rule: str
    replicas: int
    why: str


@dataclass(frozen=True)
class Fleet:
    """What is known of a model's pods besides their load.

    Attributes:
        pending: pods that start.
        cold_start: measured 90th percentile of creation to ready, in seconds; None if unknown.
    """

    pending: int = 0
    cold_start: float | None = None


def wants(history: Sequence[Observation], fleet: Fleet, policy: Policy) -> tuple[Want, ...]:
    """What every rule asks for beyond rest, at the last moment of ``history``."""
    if not history or not history[-1].fresh:
        return ()
    unseen = unseen_load(history[-1], fleet)
    rules = (
        _for_kv(history[-1], unseen, policy),
        _for_slots(history[-1], unseen, policy),
        _for_queue(history, unseen, policy),
        _for_demand(history, unseen, policy),
        _for_prediction(history, unseen, fleet, policy),
    )
    return tuple(want for want in rules if want is not None)


def unseen_load(now: Observation, fleet: Fleet) -> int:
    """Pods whose load is not known: neither spare nor in need, so each counts for itself.

    A pod that starts anew has none; it is among those whose samples broke off.
    """
    return max(0, now.lost - fleet.pending)


def needed_to_fit(now: Observation, policy: Policy) -> int | None:
    """The fewest replicas on which the load would stay below ``fit_usage``; None if unknown."""
    usage = total(now.fresh, lambda pod: pod.kv_usage)
    if usage is None:
        return None
    needed = _fewest_below(usage, policy.fit_usage)
    slots = slots_per_pod(now.fresh, policy)
    running = total(now.fresh, lambda pod: pod.running)
    if slots is not None and running is not None:
        needed = max(needed, _fewest_below(running / slots, policy.fit_usage))
    demand = demand_in_replicas(now.fresh)
    if demand is not None:
        needed = max(needed, _at_least(demand / policy.demand_target))
    return needed


def mean_usage(now: Observation) -> float | None:
    """Mean KV usage of the pods that are known, 0 to 1."""
    usage = total(now.fresh, lambda pod: pod.kv_usage)
    return None if usage is None else usage / len(now.fresh)


def slots_per_pod(pods: Sequence[PodLoad], policy: Policy) -> float | None:
    """Requests that a pod may run at once, as it says or as it is configured."""
    slots = total(pods, lambda pod: pod.slots)
    return slots / len(pods) if slots else policy.max_num_seqs


def demand_in_replicas(pods: Sequence[PodLoad]) -> float | None:
    """Replicas whose caches would hold all requests uncompressed; None without GrowPage."""
    logical = total(pods, lambda pod: pod.logical_tokens)
    capacity = total(pods, lambda pod: pod.capacity_tokens)
    return logical * len(pods) / capacity if logical is not None and capacity else None


def growth_refused(history: Sequence[Observation], seconds: float) -> float | None:
    """How often a cache could not grow in the last seconds; None if no pod says."""
    counts = [
        pod.growth_refused
        for each in within(history, seconds)
        for pod in each.fresh
        if pod.growth_refused is not None
    ]
    return sum(counts) if counts else None


def within(history: Sequence[Observation], seconds: float) -> Sequence[Observation]:
    """The observations of the last seconds, both ends included."""
    begin = history[-1].time - seconds - _EPSILON
    return [each for each in history if each.time >= begin]


def reaches_back(history: Sequence[Observation], seconds: float) -> bool:
    """Whether the observations cover the last seconds."""
    return history[0].time <= history[-1].time - seconds + _EPSILON


def _for_kv(now: Observation, unseen: int, policy: Policy) -> Want | None:
    usage = total(now.fresh, lambda pod: pod.kv_usage)
    if usage is None:
        return None
    return _for_share("KV usage", usage, len(now.fresh), unseen, policy)


def _for_slots(now: Observation, unseen: int, policy: Policy) -> Want | None:
    running = total(now.fresh, lambda pod: pod.running)
    slots = slots_per_pod(now.fresh, policy)
    if running is None or slots is None:
        return None
    return _for_share("use of request slots", running / slots, len(now.fresh), unseen, policy)


def _for_share(what: str, load: float, pods: int, unseen: int, policy: Policy) -> Want | None:
    """A load in replicas, against the share of a replica that it should take."""
    share = load / pods
    if (
        share < policy.scale_out_usage - _EPSILON
        or share / policy.target_usage <= 1 + policy.tolerance
    ):
        return None
    replicas = _at_least(load / policy.target_usage) + unseen
    why = f"{what} is {share:.2f}, at least {policy.scale_out_usage:g}"
    return Want(what, replicas, why)


def _for_queue(history: Sequence[Observation], unseen: int, policy: Policy) -> Want | None:
    if not reaches_back(history, policy.queue_seconds):
        return None
    queues = [
        total(each.fresh, lambda pod: pod.waiting) for each in within(history, policy.queue_seconds)
    ]
    lengths = [queue for queue in queues if queue is not None]
    if len(lengths) < len(queues) or min(lengths) <= policy.queue_waiting:
        return None
    now = history[-1].fresh
    running = total(now, lambda pod: pod.running) or 0.0
    # While requests wait for capacity, what a pod runs is what a pod can run: its slots, or as much
    # as its KV cache holds.
    per_pod = running / len(now)
    replicas = len(now) + 1
    if per_pod:
        replicas = max(replicas, _at_least((running + lengths[-1]) / per_pod))
    why = (
        f"{lengths[-1]:g} requests wait, more than {policy.queue_waiting} "
        f"for {policy.queue_seconds:g} s"
    )
    return Want("queue", replicas + unseen, why)


def _for_demand(history: Sequence[Observation], unseen: int, policy: Policy) -> Want | None:
    refused = growth_refused(history, policy.queue_seconds)
    demand = demand_in_replicas(history[-1].fresh)
    if not refused or demand is None:
        return None
    ratio = demand / len(history[-1].fresh)
    if ratio / policy.demand_target <= 1 + policy.tolerance:
        return None
    replicas = _at_least(demand / policy.demand_target) + unseen
    why = (
        f"uncompressed demand is {ratio:.2f} of the KV capacity, more than "
        f"{policy.demand_target:g}, and growth was refused"
    )
    return Want("demand", replicas, why)


def _for_prediction(
    history: Sequence[Observation], unseen: int, fleet: Fleet, policy: Policy
) -> Want | None:
    expected = predict(history, fleet, policy)
    if expected is None:
        return None
    load = expected.usage * len(history[-1].fresh)
    why = (
        f"KV will be full in {expected.seconds_to_full:.0f} s, and a replica that helps takes "
        f"{expected.horizon:.0f} s"
    )
    return Want("prediction", _at_least(load / policy.target_usage) + unseen, why)


def predict(history: Sequence[Observation], fleet: Fleet, policy: Policy) -> Forecast | None:
    """Whether the KV cache fills before a new replica could help."""
    cold_start = policy.cold_start_seconds or fleet.cold_start
    if not policy.prediction or not cold_start:
        return None
    return forecast(
        list(_usage_over_time(within(history, policy.prediction_seconds))),
        least_span=policy.prediction_seconds / 2,
        horizon=cold_start * policy.cold_start_margin,
    )


def _usage_over_time(history: Sequence[Observation]) -> Iterator[tuple[float, float]]:
    for each in history:
        usage = mean_usage(each)
        if usage is not None:
            yield each.time, usage


def _at_least(load: float) -> int:
    return max(1, ceil(load - _EPSILON))


def _fewest_below(load: float, share: float) -> int:
    return floor(load / share + _EPSILON) + 1
