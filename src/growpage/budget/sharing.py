"""Sharing one pool: which requests give pages when pages are short (the elastic rule).

Pages are given whole and one at a time, each by the request that the rule names then. Evicting is
irreversible, so nobody gives a page before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """One request's cache, as far as it can be asked for pages."""

    tokens: int
    """Tokens cached."""
    floor: int
    """Tokens that it is left with at least."""
    losses: tuple[float, ...] | None = None
    """Predicted loss if 1, 2, ... pages fewer were kept; the last one stands for all beyond it.
    None: unknown, or not to be trusted yet."""
    needed: int | None = None
    """Tokens of its prompt and its working set. None: not measured yet."""


GiverRule = Callable[[Sequence[Holding], Sequence[int], int], int | None]
"""From holdings, the pages that each has given already, and the page size: who gives the next page;
none if nobody can."""


def largest(holdings: Sequence[Holding], given: Sequence[int], page: int) -> int | None:
    """The request with the largest cache; of equal ones, the one that was admitted last."""
    able = _able(holdings, given, page)
    return max(able, key=lambda i: (holdings[i].tokens - given[i] * page, i), default=None)


def least_loss(holdings: Sequence[Holding], given: Sequence[int], page: int) -> int | None:
    """The request that loses least by its next page; the largest one if of none it is known."""
    known = {
        i: _marginal_loss(losses, given[i])
        for i in _able(holdings, given, page)
        if (losses := holdings[i].losses)
    }
    if known:
        return min(known, key=lambda i: (known[i], -i))
    return largest(holdings, given, page)


def widest_margin(holdings: Sequence[Holding], given: Sequence[int], page: int) -> int | None:
    """The request with most tokens beyond what it needs; beyond its floor if that is not known.

    Of equal ones, the one that was admitted last.
    """

    def margin(i: int) -> int:
        held = holdings[i]
        needed = held.floor if held.needed is None else held.needed
        return held.tokens - given[i] * page - needed

    return max(_able(holdings, given, page), key=lambda i: (margin(i), i), default=None)


GIVER_RULES: dict[str, GiverRule] = {
    "largest": largest,
    "least_loss": least_loss,
    "widest_margin": widest_margin,
}


def pages_to_give(
    holdings: Sequence[Holding],
    wanted: int,
    page: int,
    rule: GiverRule,
    given: Sequence[int] | None = None,
) -> list[int]:
    """How many pages' worth of tokens each request gives, so that together they give ``wanted``.

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
    while sum(agreed) < wanted:
        giver = rule(holdings, agreed, page)
        if giver is None:
            break
        agreed[giver] += 1
    return agreed


def pages_above_floors(holdings: Sequence[Holding], page: int) -> int:
    """All that could be given."""
    return sum(max(held.tokens - held.floor, 0) // page for held in holdings)


def _able(holdings: Sequence[Holding], given: Sequence[int], page: int) -> list[int]:
    return [
        i for i, held in enumerate(holdings) if held.tokens - (given[i] + 1) * page >= held.floor
    ]


def _marginal_loss(losses: tuple[float, ...], given: int) -> float:
    """What one more page costs after ``given`` pages."""
    if given >= len(losses):
        return losses[-1]
    return losses[given] - (losses[given - 1] if given else 0.0)
