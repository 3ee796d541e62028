"""The decision: a pure function of what was seen. The same input gives the same output, always.

Three principles. Data that cannot be trusted change nothing. Growing needs one good reason, seen
for a short while; shrinking needs every condition, on complete data, for a long while. And whatever
is decided stays between the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from growpage.fleet.config import Policy
from growpage.fleet.decision import Action, DataState, Decision, Input
from growpage.fleet.observation import Observation, PodLoad, total
from growpage.fleet.stabilisation import Change, frozen, may_add, may_remove
from growpage.fleet.targets import Replicas, Target
from growpage.fleet.wants import (
    Fleet,
    Want,
    demand_in_replicas,
    growth_refused,
    mean_usage,
    needed_to_fit,
    predict,
    reaches_back,
    wants,
    within,
)


@dataclass(frozen=True)
class Situation:
    """All that a decision is taken from.

    Attributes:
        model: the served model's name.
        target: the workload that serves it.
        replicas: how many there are; None if that is not known.
        history: observations at even distances, oldest first; the last is of now.
        changes: how the replicas changed lately, oldest first.
        cold_start: measured 90th percentile of creation to ready, in seconds; None if unknown.
        queries: the queries behind each value, for the record.
        trouble: why there are no data, when the source itself failed.
    """

    model: str
    target: Target
    replicas: Replicas | None
    history: Sequence[Observation] = ()
    changes: Sequence[Change] = ()
    cold_start: float | None = None
    queries: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""

    @property
    def fleet(self) -> Fleet:
        """What the rules need of it."""
        return Fleet(self.replicas.pending if self.replicas else 0, self.cold_start)

    @property
    def state(self) -> DataState:
        """Of the newest data."""
        return self.history[-1].state if self.history else DataState.ABSENT

    @property
    def now(self) -> float:
        """The time of the newest data, 0 if there are none."""
        return self.history[-1].time if self.history else 0.0


def decide(situation: Situation, policy: Policy) -> Decision:
    """What to do with the replicas of a model."""
    current, reason = None, "hold: the number of replicas is not known"
    action, desired = Action.NO_ACTION, None
    if situation.replicas is not None:
        current = situation.replicas.desired
        desired, reason = _desired(situation, current, policy)
        if desired > current:
            action = Action.SCALE_OUT
        elif desired < current:
            action = Action.SCALE_IN
    elif situation.trouble:
        reason = f"{reason}: {situation.trouble}"
    return Decision(
        model=situation.model,
        target=situation.target,
        action=action,
        current=current,
        desired=desired,
        reason=reason,
        state=situation.state,
        inputs=tuple(_inputs(situation, policy)),
    )


def _desired(situation: Situation, current: int, policy: Policy) -> tuple[int, str]:
    """How many replicas there should be, and why."""
    if current < policy.min_replicas:
        return policy.min_replicas, f"{current} is fewer than min_replicas, {policy.min_replicas}"
    if situation.state not in (DataState.FRESH, DataState.PARTIAL):
        return current, f"hold: {_why_bad(situation)}"
    out = _scale_out(situation, current, policy)
    if out is not None:
        return out
    soon = _want_of_now(situation, policy)
    if soon is not None and soon.replicas > current and current <= policy.max_replicas:
        window = policy.scale_out_window_seconds
        return current, f"{soon.why}; not yet for {window:g} s"
    if situation.state is DataState.PARTIAL:
        return current, f"hold, only a scale-out could be decided: {_why_bad(situation)}"
    return _scale_in(situation, current, policy)


def _why_bad(situation: Situation) -> str:
    if situation.trouble:
        return situation.trouble
    problems = situation.history[-1].describe_problems() if situation.history else ""
    return f"data are {situation.state}" + (f" ({problems})" if problems else "")


def _scale_out(situation: Situation, current: int, policy: Policy) -> tuple[int, str] | None:
    """More replicas, if every moment of the stabilisation window asks for them."""
    want = _stable_want(situation, policy)
    if want is None or want.replicas <= current:
        return None
    if current >= policy.max_replicas:
        if current > policy.max_replicas:
            return None
        return current, f"{want.why}; {want.replicas} would be needed, but max_replicas is reached"
    allowed = may_add(current, situation.changes, situation.now, policy)
    desired = min(want.replicas, policy.max_replicas, current + allowed)
    if desired < want.replicas:
        limit = "max_replicas" if desired == policy.max_replicas else "the step limit"
        return desired, f"{want.why}; {want.replicas} would be needed, but {limit} allows {desired}"
    return desired, f"{want.why}: {desired} replicas are needed"


def _want_of_now(situation: Situation, policy: Policy) -> Want | None:
    return _most(wants(situation.history, situation.fleet, policy))


def _most(opinions: Iterable[Want]) -> Want | None:
    return max(opinions, key=lambda want: want.replicas, default=None)


def _stable_want(situation: Situation, policy: Policy) -> Want | None:
    """The least of the most demanding wants over the scale-out window."""
    history = situation.history
    if not reaches_back(history, policy.scale_out_window_seconds):
        return None
    least: Want | None = None
    moments = len(within(history, policy.scale_out_window_seconds))
    for end in range(len(history), len(history) - moments, -1):
        most = _most(wants(history[:end], situation.fleet, policy))
        if most is None:
            return None
        if least is None or most.replicas < least.replicas:
            least = most
    return least


def _against_scale_in(situation: Situation, current: int, policy: Policy) -> Iterator[str]:
    """What forbids a scale-in, the plainest reason first."""
    now = situation.history[-1]
    usage = mean_usage(now)
    if usage is None or usage >= policy.scale_in_usage:
        yield f"KV usage of {usage or 0:.2f} asks for no change"
    if usage is not None and abs(usage / policy.target_usage - 1) <= policy.tolerance:
        yield f"KV usage of {usage:.2f} is within the tolerance of its target"
    if current <= policy.min_replicas:
        yield f"no load, and min_replicas is {policy.min_replicas}"
    replicas = situation.replicas
    if replicas is not None and (replicas.pending or len(now.pods) != current):
        yield f"no scale-in while pods come and go: {len(now.pods)} report, {current} are asked for"
    if frozen(situation.changes, situation.now, policy):
        yield f"no scale-in after {policy.reversal_limit} changes of direction"
    window = policy.scale_in_window_seconds
    if not reaches_back(situation.history, window):
        yield f"no scale-in before {window:g} s have been seen"
    seen = within(situation.history, window)
    names = {pod.pod for pod in now.pods}
    for each in seen:
        ago = f"{now.time - each.time:.0f} s ago"
        if each.state is not DataState.FRESH or {pod.pod for pod in each.pods} != names:
            yield f"no scale-in on a gap in the data, {ago}"
        yield from _load_against_scale_in(each, ago, policy)


def _load_against_scale_in(each: Observation, ago: str, policy: Policy) -> Iterator[str]:
    usage = mean_usage(each)
    if usage is None or usage >= policy.scale_in_usage:
        yield f"no scale-in yet: KV usage was {usage or 0:.2f} {ago}"
    if (waiting := total(each.fresh, lambda pod: pod.waiting)) != 0:
        yield f"no scale-in yet: {waiting or 0:g} requests waited {ago}"
    preempted = total(each.fresh, lambda pod: pod.preemptions)
    if preempted is None:
        yield "no scale-in: whether requests are preempted is not known"
    elif preempted > 0:
        yield f"no scale-in yet: requests were preempted {ago}"
    if any(pod.growth_refused for pod in each.fresh):
        yield f"no scale-in yet: growth was refused {ago}"
    limit = policy.max_predicted_loss
    if limit is not None and any((pod.predicted_loss or 0) > limit for pod in each.fresh):
        yield f"no scale-in yet: the predicted loss exceeded {limit:g} {ago}"


def _scale_in(situation: Situation, current: int, policy: Policy) -> tuple[int, str]:
    """Fewer replicas, if nothing forbids it and the load of the whole window would fit."""
    if current > policy.max_replicas:
        allowed = may_remove(situation.changes, situation.now, policy)
        desired = max(policy.max_replicas, current - allowed)
        return desired, f"{current} is more than max_replicas, {policy.max_replicas}"
    blocked = next(_against_scale_in(situation, current, policy), None)
    if blocked is not None:
        return current, blocked
    seen = within(situation.history, policy.scale_in_window_seconds)
    needs = [need for each in seen if (need := needed_to_fit(each, policy)) is not None]
    needed = max(policy.min_replicas, *needs)
    if len(needs) < len(seen) or needed >= current:
        return current, "no scale-in: the load would not fit on one replica fewer"
    allowed = may_remove(situation.changes, situation.now, policy)
    desired = max(needed, current - allowed)
    if desired == current:
        return current, "no scale-in yet: the step limit of this period is used up"
    usage = mean_usage(situation.history[-1]) or 0.0
    return desired, (
        f"KV usage of {usage:.2f} stayed below {policy.scale_in_usage:g} for "
        f"{policy.scale_in_window_seconds:g} s with nothing waiting, and fits on {desired}"
    )


def _inputs(situation: Situation, policy: Policy) -> Iterator[Input]:
    """The values behind a decision, for people and for the record."""
    replicas = situation.replicas
    if replicas is not None:
        for name in ("desired", "ready", "pending"):
            query = situation.queries.get("replicas", "")
            yield Input(f"replicas_{name}", float(getattr(replicas, name)), 0.0, query)
    if situation.cold_start is not None:
        yield Input("cold_start_seconds", situation.cold_start, None, "")
    if not situation.history:
        return
    now = situation.history[-1]
    pods = now.fresh
    ages = [pod.age_seconds for pod in pods if pod.age_seconds is not None]
    age = max(ages, default=None)

    def value(name: str, number: float | None) -> Input:
        return Input(name, number, age, situation.queries.get(name, ""))

    yield value("pods_fresh", float(len(pods)))
    yield value("pods_lost", float(now.lost))
    yield value("kv_usage", mean_usage(now))
    yield value("waiting", total(pods, lambda pod: pod.waiting))
    yield value("running", total(pods, lambda pod: pod.running))
    yield value("max_num_seqs", total(pods, lambda pod: pod.slots))
    window = policy.scale_in_window_seconds
    yield value("preemptions", _sum_over(situation.history, window, lambda pod: pod.preemptions))
    yield value("growth_refused", growth_refused(situation.history, policy.queue_seconds))
    yield value("demand_replicas", demand_in_replicas(pods))
    losses = [pod.predicted_loss for pod in pods if pod.predicted_loss is not None]
    yield value("predicted_loss", max(losses, default=None))
    expected = predict(situation.history, situation.fleet, policy) if pods else None
    yield value("seconds_to_full", expected.seconds_to_full if expected else None)


def _sum_over(
    history: Sequence[Observation], seconds: float, read: Callable[[PodLoad], float | None]
) -> float | None:
    counts = [total(each.fresh, read) for each in within(history, seconds)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
