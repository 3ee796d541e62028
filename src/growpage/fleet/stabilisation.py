"""What keeps a target from flapping: how often, how far and which way it changed lately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from growpage.fleet.config import Policy


@dataclass(frozen=True)
class Change:
    """The target's replicas changed, whoever did it."""

    time: float
    before: int
    after: int

    @property
    def added(self) -> int:
        """Replicas that came; negative if they went."""
        return self.after - self.before


def reversals(changes: Iterable[Change], since: float) -> int:
    """How often the direction turned, from one change to the next, after ``since``."""
    return sum(
        1
        for first, second in pairwise(changes)
        if second.time > since and (first.added > 0) != (second.added > 0)
    )


def may_add(current: int, changes: Sequence[Change], now: float, policy: Policy) -> int:
    """Replicas that a scale-out may add now."""
    since = now - policy.scale_out_period_seconds
    added = sum(max(0, change.added) for change in changes if change.time > since)
    # A share of the replicas at the start of the period, or steps would compound within it.
    share = int((current - added) * policy.scale_out_step_percent / 100)
    return max(0, max(policy.scale_out_step, share) - added)


def may_remove(changes: Sequence[Change], now: float, policy: Policy) -> int:
    """Replicas that a scale-in may remove now."""
    since = now - policy.scale_in_period_seconds
    removed = sum(max(0, -change.added) for change in changes if change.time > since)
    return max(0, policy.scale_in_step - removed)


def frozen(changes: Sequence[Change], now: float, policy: Policy) -> bool:
    """Whether the target turned so often that it must not shrink now.

    Growing stays allowed: a freeze must never starve a loaded fleet. So within any
    ``reversal_window_seconds`` there is at most one reversal more than the limit.
    """
    return reversals(changes, now - policy.reversal_window_seconds) >= policy.reversal_limit


class ChangeLog:
    """Remembers how a target's replicas changed, for as long as the policy looks back."""

    def __init__(self, policy: Policy) -> None:
        self._keep = max(
            policy.reversal_window_seconds,
            policy.scale_in_period_seconds,
            policy.scale_out_period_seconds,
        )
        self._last: int | None = None
        self._changes: list[Change] = []

    def note(self, now: float, replicas: int) -> None:
        """The target asks for so many replicas now."""
        if self._last is not None and replicas != self._last:
            self._changes.append(Change(now, self._last, replicas))
        self._last = replicas
        # One change before the window is kept: the first within it may turn its direction.
        while len(self._changes) > 1 and self._changes[1].time <= now - self._keep:
            del self._changes[0]

    @property
    def changes(self) -> tuple[Change, ...]:
        """Oldest first."""
        return tuple(self._changes)
