"""The quantile of the last values seen, exact and in bounded memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil


class RunningQuantile:
    """Remembers the last ``size`` values.

    Args:
        share: which quantile, more than 0 and less than 1.
        size: values that are remembered.
        least: values that must have been seen before the quantile means anything.
    """

    def __init__(self, share: float, size: int = 1024, least: int = 32) -> None:
        self.share = share
        self.least = least
        self._last: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    @property
    def value(self) -> float | None:
        """The least remembered value that ``share`` of them do not exceed; none while too few."""
        if len(self._sorted) < self.least:
            return None
        return self._sorted[ceil(self.share * len(self._sorted)) - 1]

    def add(self, value: float) -> None:
        """Remember ``value``, which must be finite, in place of the oldest one."""
        if len(self._last) == self._last.maxlen:
            del self._sorted[bisect_left(self._sorted, self._last[0])]
        self._last.append(value)
        insort(self._sorted, value)
