"""What is decided for a model, and from what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from growpage.fleet.targets import Target


class Action(StrEnum):
    """What to do with a target's replicas."""

    SCALE_OUT = "SCALE_OUT"
    SCALE_IN = "SCALE_IN"
    NO_ACTION = "NO_ACTION"


class DataState(StrEnum):
    """How far the data behind a decision can be trusted.

    FRESH: recent, and every live pod is in it. PARTIAL: recent, but not of every pod, or with a
    warning. STALE: too old. ABSENT: there is none. INVALID: not a number, or out of range.
    """

    FRESH = "FRESH"
    PARTIAL = "PARTIAL"
    STALE = "STALE"
    ABSENT = "ABSENT"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Input:
    """One value that a decision was taken from.

    Attributes:
        name: what it measures, such as ``kv_usage``.
        value: the value; None if there was none.
        age_seconds: how old it was when the decision was taken; None if unknown.
        query: the query that gave it, or the call.
    """

    name: str
    value: float | None
    age_seconds: float | None
    query: str


@dataclass(frozen=True)
class Decision:
    """What to do with the replicas of one served model.

    Attributes:
        model: the served model's name.
        target: the workload that serves it.
        action: what to do; ``NO_ACTION`` too when the data forbid to decide.
        current: replicas that the target asks for now; None only if that is not known, and then
            the action is ``NO_ACTION``.
        desired: replicas that it should ask for; ``current`` when the action is ``NO_ACTION``.
        reason: one sentence for people.
        state: the state of the data that it was taken from.
        inputs: the values that it was taken from, with their ages.
    """

    model: str
    target: Target
    action: Action
    current: int | None
    desired: int | None
    reason: str
    state: DataState
    inputs: tuple[Input, ...] = ()
