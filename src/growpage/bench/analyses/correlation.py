"""Rank correlations with intervals, where a request may have many points.

The bootstrap draws whole requests, since the points of one request are not independent of each
other. A request that is drawn twice has twice the weight, so that all draws are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from growpage.bench.replay_table import NOT_RESOLVED
from growpage.bench.statistics import DRAWS, LEVEL, Estimate

AT_ONCE = 4_000_000
"""Weights that are held in memory at a time."""

Figure = Callable[[np.ndarray], np.ndarray]
"""From weights ``[draws, points]`` to a figure of each draw, ``[draws]``."""


def spearman(
    ours: Sequence[float], theirs: Sequence[float], requests: Sequence[str], seed: int = 0
) -> Estimate | None:
    """Spearman's rank correlation over all points; ties share their mean rank.

    Args:
        ours: ``[points]``.
        theirs: the same points'.
        requests: which request each point is of.
        seed: of the bootstrap.

    Returns:
        None where there are fewer than three points or two requests, or either does not vary.
    """
    if not (_varies(ours) and _varies(theirs)) or len(ours) < 3 or len(set(requests)) < 2:
        return None
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    return bootstrap(lambda weights: _rank_correlation(a, b, weights), requests, seed)


def partial_spearman(
    ours: Sequence[float],
    theirs: Sequence[float],
    given: Sequence[float],
    requests: Sequence[str],
    seed: int = 0,
) -> Estimate | None:
    """:func:`spearman` of what neither owes to ``given``.

    None also where ``given`` does not vary, or the ranks of either are the same as its own.
    """
    if not all(map(_varies, (ours, theirs, given))) or len(ours) < 3 or len(set(requests)) < 2:
        return None
    a, b, c = (np.asarray(each, dtype=float) for each in (ours, theirs, given))
    once = np.ones((1, len(c)), dtype=int)
    if any(abs(_rank_correlation(each, c, once)[0]) > 1 - 1e-9 for each in (a, b)):
        return None

    def compute(weights: np.ndarray) -> np.ndarray:
        ab, ac, bc = (_rank_correlation(*pair, weights) for pair in ((a, b), (a, c), (b, c)))
        rest = (1 - ac**2) * (1 - bc**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (ab - ac * bc) / np.sqrt(rest)
        # Nothing is left of one that follows from ``given`` alone.
        return np.where(rest > 1e-12, found, 0.0)

    return bootstrap(compute, requests, seed)


def share(flags: Sequence[bool], requests: Sequence[str], seed: int = 0) -> Estimate:
    """The share of the points that are true."""
    true = np.asarray(flags, dtype=float)
    return bootstrap(lambda weights: weights @ true / weights.sum(axis=1), requests, seed)


def bootstrap(compute: Figure, requests: Sequence[str], seed: int = 0) -> Estimate:
    """A figure over all points, and over points of requests drawn anew with replacement.

    Args:
        compute: the figure.
        requests: which request each point is of.
        seed: of the draws.
    """
    names, owner = np.unique(np.asarray(requests), return_inverse=True)
    chance = np.random.default_rng(seed)
    even = np.full(len(names), 1 / len(names))
    size = max(1, AT_ONCE // len(owner))
    draws = np.concatenate(
        [
            compute(chance.multinomial(len(names), even, min(size, DRAWS - begun))[:, owner])
            for begun in range(0, DRAWS, size)
        ]
    )
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, (tail, 1 - tail), method="inverted_cdf")
    value = compute(np.ones((1, len(owner)), dtype=int))
    return Estimate(float(value[0]), float(low), float(high))


def as_json(rho: Estimate | None) -> dict[str, Any] | None:
    """A correlation for a report, which says whether it is resolved from zero."""
    return None if rho is None else {**asdict(rho), "resolved": rho.resolves(0)}


def show(rho: Mapping[str, Any] | None, otherwise: str = "-") -> str:
    """A report's correlation in words, and ``otherwise`` where there is none."""
    if rho is None:
        return otherwise
    text = f"{rho['value']:+.2f} [{rho['low']:+.2f}, {rho['high']:+.2f}]"
    return text if rho["resolved"] else f"{text} {NOT_RESOLVED}"


def _varies(values: Sequence[float]) -> bool:
    return len(set(values)) > 1


def _rank_correlation(ours: np.ndarray, theirs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of each draw; 0 where a draw has one value only, since that says nothing."""
    total = weights.sum(axis=1, keepdims=True)
    a, b = _ranks(ours, weights), _ranks(theirs, weights)
    a, b = (each - (weights * each).sum(axis=1, keepdims=True) / total for each in (a, b))
    both, a_alone, b_alone = ((weights * each).sum(axis=1) for each in (a * b, a * a, b * b))
    scale = np.sqrt(a_alone * b_alone)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 1e-9, both / scale, 0.0)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each point's mean rank, where one of weight 2 counts as two: [draws, points]."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    together = np.add.reduceat(weights[:, order], begins, axis=1)
    middle = np.cumsum(together, axis=1) - (together - 1) / 2
    return np.asarray(middle[:, group])
