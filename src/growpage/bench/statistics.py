"""Paired statistics: what can be said of two contenders that served the same requests.

Requests are drawn anew, with replacement (the bootstrap); both contenders keep their own figure for
each drawn request, so what is common to both cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

DRAWS = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that holds it with probability :data:`LEVEL`."""

    value: float
    low: float
    high: float

    def resolves(self, other: float) -> bool:
        """Whether the figure differs from ``other`` beyond chance."""
        return not self.low <= other <= self.high

    def show(self, form: str = ".2f") -> str:
        """``0.42 [0.25, 0.70]``."""
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def mean(figures: Mapping[str, float], seed: int = 0) -> Estimate:
    """The mean over requests."""
    return estimate(lambda drawn: drawn.mean(axis=-1), seed, figures)


def difference(ours: Mapping[str, float], theirs: Mapping[str, float], seed: int = 0) -> Estimate:
    """mean(ours) - mean(theirs), over the same requests."""
    return estimate(lambda a, b: a.mean(axis=-1) - b.mean(axis=-1), seed, ours, theirs)


def ratio(ours: Mapping[str, float], theirs: Mapping[str, float], seed: int = 0) -> Estimate:
    """mean(ours) / mean(theirs), over the same requests."""
    return estimate(lambda a, b: _ratio(a.mean(axis=-1), b.mean(axis=-1)), seed, ours, theirs)


def loss_ratio(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    reference: Mapping[str, float],
    seed: int = 0,
) -> Estimate:
    """What ours loses of the reference, over what theirs loses: 0.5 is half of the loss."""

    def compute(a: np.ndarray, b: np.ndarray, full: np.ndarray) -> np.ndarray:
        at_full = full.mean(axis=-1)
        return _ratio(at_full - a.mean(axis=-1), at_full - b.mean(axis=-1))

    return estimate(compute, seed, ours, theirs, reference)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            below == 0, np.where(above == 0, 1.0, np.inf * np.sign(above)), above / below
        )


def estimate(
    compute: Callable[..., np.ndarray], seed: int, *figures: Mapping[str, float]
) -> Estimate:
    """``compute`` of ``[..., requests]`` arrays, on the requests as they are and as drawn.

    Args:
        compute: takes one array for each of ``figures``, and leaves out their last axis.
        seed: of the draws.
        figures: by request.

    Raises:
        ValueError: they are not of the same requests.
    """
    names = list(figures[0])
    for other in figures[1:]:
        if set(other) != set(names):
            raise ValueError("the two did not serve the same requests, so they cannot be paired")
    table = np.array([[each[name] for name in names] for each in figures], dtype=float)
    drawn = np.random.default_rng(seed).integers(len(names), size=(DRAWS, len(names)))
    draws = compute(*(row[drawn] for row in table))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, (tail, 1 - tail), method="inverted_cdf")
    return Estimate(float(compute(*table)), float(low), float(high))
