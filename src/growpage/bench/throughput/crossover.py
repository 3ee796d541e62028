"""Where compression stops to pay: the pool at which the baseline catches up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Crossover:
    """Where a curve of ratios falls to the baseline's 1."""

    at: float | None
    """The share of the load's need, interpolated; none if nothing that was measured crosses."""
    text: str
    """The same in words."""


def find_crossover(shares: Sequence[float], ratios: Sequence[float]) -> Crossover:
    """The pool share above which a contender is not faster than the baseline.

    Between two pools that were measured, the ratio is taken to be linear in the share. Where the
    curve falls to 1 more than once, the last time counts: above it nothing is gained.

    Args:
        shares: pools, as shares of what the load needs.
        ratios: tokens/s over the baseline's, at each.
    """
    points = sorted(zip(shares, ratios, strict=True))
    if len(points) < 2:
        return Crossover(None, "one pool was measured: a crossover needs two at least")
    low, high = points[0][0], points[-1][0]
    span = f"from {low:.0%} to {high:.0%} of the need"
    if points[-1][1] > 1:
        return Crossover(None, f"no crossover: it pays still at {high:.0%}, the largest pool")
    if all(ratio <= 1 for _, ratio in points):
        return Crossover(None, f"no crossover: it pays nowhere {span}")
    falls = [
        x + (y - 1) / (y - after) * (right - x)
        for (x, y), (right, after) in pairwise(points)
        if y > 1 >= after
    ]
    text = f"it pays below a pool of {falls[-1]:.0%} of the need, and not above"
    if len(falls) > 1 or points[0][1] <= 1:
        text += f" (the curve crosses 1 more than once {span}: more rounds may be needed)"
    return Crossover(falls[-1], text)
