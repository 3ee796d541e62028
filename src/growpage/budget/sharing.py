"""Sharing one pool: which requests give pages when pages are short (the elastic rule).

Pages are given whole and one at a time, each by the request that the rule names then. Evicting is
irreversible, so nobody gives a page before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple


class Holding(NamedTuple):
    """One request's cache, as far as it can be asked for pages."""

    tokens: int
    """Tokens cached."""
    floor: int
    """Tokens that it is left with at least."""
    losses: tuple[float, ...] | None = None
    """Predicted loss if 1, 2, ... pages fewer were kept; the last one stands for all beyond it.
    None: unknown, or not to be trusted yet."""
    needed: int | None = None
    """Tokens of its working set, and of its prompt if that is protected. None: not measured yet."""
    evicted: int = 0
    """Tokens that it has lost already."""


Claim = tuple[float, float]
"""How much a request holds on to its next page: the one with the least claim gives."""

GiverRule = Callable[[Holding, int, int], Claim]
"""From a holding, the pages that it has given already, and the page size: its claim to the next.
It depends on no other holding, so that only who has given must be asked again."""


def largest(held: Holding, given: int, page: int) -> Claim:
    """The request with the largest cache gives."""
    return 0, given * page - held.tokens


def least_loss(held: Holding, given: int, page: int) -> Claim:
    """The request that loses least by its next page gives; the largest one if of none it is known.

    That is so if all whose loss is known have come down to their floors.
    """
    if held.losses:
        return 0, _marginal_loss(held.losses, given)
    return 1, given * page - held.tokens


def widest_margin(held: Holding, given: int, page: int) -> Claim:
    """The request with most tokens beyond what it needs gives; beyond its floor if that is unknown.

    Its working set is what it needs, and its prompt if that is protected.
    """
    needed = held.floor if held.needed is None else held.needed
    return 0, needed + given * page - held.tokens


def least_evicted(held: Holding, given: int, page: int) -> Claim:
    """The request that keeps the largest share of its tokens gives; of equal ones, the largest."""
    left = held.tokens - given * page
    return -left / max(held.tokens + held.evicted, 1), -left


GIVER_RULES: dict[str, GiverRule] = {
    "largest": largest,
    "least_evicted": least_evicted,
    "least_loss": least_loss,
    "widest_margin": widest_margin,
}

MEASURING_GIVERS = frozenset({"least_loss", "widest_margin"})
"""Those that look at what was measured of a request."""


def pages_to_give(
    holdings: Sequence[Holding],
    wanted: int,
    page: int,
    rule: GiverRule,
    given: Sequence[int] | None = None,
) -> list[int]:
    """How many pages' worth of tokens each request gives, so that together they give ``wanted``.

    Of requests with equal claims, the one that was admitted last gives. Takes time for each holding
    once, and for each page the logarithm of their number.

    Args:
        holdings: the requests that can be compressed now, in order of admission.
        wanted: pages that are short.
        page: tokens in a page.
        rule: who is next.
        given: what they have agreed to already, and what counts as given.

    Returns:
        One number for each holding; fewer in all than ``wanted`` if the floors do not allow more.
    """
    agreed = list(given or [0] * len(holdings))
    missing = wanted - sum(agreed)
    if missing <= 0:
        return agreed
    givers = [
        (rule(held, agreed[i], page), -i)
        for i, held in enumerate(holdings)
        if held.tokens - (agreed[i] + 1) * page >= held.floor
    ]
    heapify(givers)
    while missing > 0 and givers:
        giver = -givers[0][1]
        agreed[giver] += 1
        missing -= 1
        held = holdings[giver]
        if held.tokens - (agreed[giver] + 1) * page >= held.floor:
            heapreplace(givers, (rule(held, agreed[giver], page), -giver))
        else:
            heappop(givers)
    return agreed


def pages_above_floors(holdings: Sequence[Holding], page: int) -> int:
    """All that could be given."""
    return sum(max(held.tokens - held.floor, 0) // page for held in holdings)


def _marginal_loss(losses: tuple[float, ...], given: int) -> float:
    """What one more page costs after ``given`` pages."""
    if given >= len(losses):
        return losses[-1]
    return losses[given] - (losses[given - 1] if given else 0.0)
