"""Several problems solved one after another in one answer, from one table of facts.

The table must be kept over the whole of the model's own answer, however long that is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from growpage.bench.problems import Problem
from growpage.bench.tasks.words import THINGS

if TYPE_CHECKING:
    from growpage.bench.tasks import Difficulty

PRICES: Mapping[str, tuple[int, int]] = {"easy": (2, 6), "medium": (3, 16)}
"""Fewest and most things that have a price."""
QUESTIONS: Mapping[str, tuple[int, int]] = {"easy": (2, 10), "medium": (6, 24)}
"""Fewest and most problems of an answer."""


def series(count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
    """Make ``count`` series of problems; each adds up the prices of two things."""
    chance = random.Random(f"series {seed}")
    return [_problem(index, difficulty, chance) for index in range(count)]


def _problem(index: int, difficulty: Difficulty, chance: random.Random) -> Problem:
    things = chance.sample(THINGS, chance.randint(*PRICES[difficulty]))
    price = {thing: chance.randint(1, 9) for thing in things}
    pairs = [chance.sample(things, 2) for _ in range(chance.randint(*QUESTIONS[difficulty]))]
    table = "\n".join(f"{thing} = {cost}" for thing, cost in price.items())
    asked = "\n".join(f"P{at}: {one} + {other}" for at, (one, other) in enumerate(pairs, 1))
    return Problem(
        id=f"series-{index}",
        family="series",
        question=(
            "Look up the prices and add them, one line for each problem.\n\n"
            "Example prices:\ncow = 4\npig = 3\nhen = 1\n"
            "Example problems:\nP1: cow + hen\nP2: pig + cow\n"
            "Example answer:\nP1: cow + hen = 4 + 1 = 5\nP2: pig + cow = 3 + 4 = 7\n\n"
            f"Prices:\n{table}\nProblems:\n{asked}\nAnswer:"
        ),
        answer="\n".join(
            f"P{at}: {price[one] + price[other]}" for at, (one, other) in enumerate(pairs, 1)
        ),
        grading="lines",
        remember=f"{table}\n{asked}",
        max_tokens=28 * len(pairs) + 16,
    )
