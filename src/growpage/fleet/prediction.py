"""How fast the KV cache fills: a slope that outliers do not move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

LEAST_POINTS = 5


@dataclass(frozen=True)
class Forecast:
    """Where KV usage is going.

    Attributes:
        slope: change of usage (0 to 1) a second.
        seconds_to_full: until usage is 1 at this slope.
        horizon: seconds ahead that matter: what a new replica needs to help, with a margin.
        usage: at the horizon; may exceed 1, as demand may.
    """

    slope: float
    seconds_to_full: float
    horizon: float
    usage: float


def theil_sen(points: Sequence[tuple[float, float]]) -> float | None:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968).

    Up to 29% of the points may be wrong without moving it far. None without two times.
    """
    slopes = [
        (later - earlier) / (end - begin)
        for (begin, earlier), (end, later) in combinations(points, 2)
        if end > begin
    ]
    return median(slopes) if slopes else None


def forecast(
    points: Sequence[tuple[float, float]], *, least_span: float, horizon: float
) -> Forecast | None:
    """Whether usage will be full within ``horizon`` seconds.

    Args:
        points: times in seconds and usage, ascending; the last is now.
        least_span: seconds that they must span to be trusted.
        horizon: how far ahead to look, in seconds.

    Returns:
        None if it is not rising, will not be full by then, or there is too little to tell.
    """
    if len(points) < LEAST_POINTS or points[-1][0] - points[0][0] < least_span:
        return None
    slope = theil_sen(points)
    if slope is None or slope <= 0:
        return None
    now = points[-1][1]
    seconds_to_full = max(0.0, 1.0 - now) / slope
    if seconds_to_full >= horizon:
        return None
    return Forecast(slope, seconds_to_full, horizon, now + slope * horizon)
