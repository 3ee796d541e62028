"""What is compared when nobody says what."""

from __future__ import annotations

from growpage.bench.contenders import Contender
from growpage.bench.pool import BLOCK_SIZE

SHARES = (0.35, 0.5, 0.65, 0.8)
"""Budgets of `fixed`, of the longest request with full KV."""


def default_contenders(longest: int, block_size: int = BLOCK_SIZE) -> list[Contender]:
    """The baseline at several budgets, its controls, and the rules that are to beat it.

    Args:
        longest: tokens of the longest request, prompt and answer.
        block_size: tokens a page.
    """
    budgets = dict.fromkeys(
        max(2, round(share * longest / block_size)) * block_size for share in SHARES
    )
    middle = list(budgets)[len(budgets) // 2]
    return [
        Contender.of(text)
        for text in (
            "full",
            *(f"fixed:budget={budget}" for budget in budgets),
            f"random=fixed:budget={middle},score=random",
            "every",
            "growpage",
            "elastic",
            "elastic least_loss=elastic:giver=least_loss",
        )
    ]
