"""How often something is done at most."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """Says when something is due again.

    Args:
        seconds: from one time to the next.
        clock: seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def is_due(self, *, at_once: bool = False) -> bool:
        """Whether it is due now, or wanted ``at_once``; if so, it counts as done."""
        now = self._clock()
        if not at_once and now < self._next:
            return False
        self._next = now + self._seconds
        return True
