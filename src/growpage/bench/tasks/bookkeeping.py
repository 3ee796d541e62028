"""Accounts kept over many steps, with every new total written out.

A step changes one account, whose last total may stand far back in the model's own answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from growpage.bench.problems import Problem
from growpage.bench.tasks.words import NAMES

if TYPE_CHECKING:
    from growpage.bench.tasks import Difficulty

ACCOUNTS: Mapping[str, tuple[int, int]] = {"easy": (1, 2), "medium": (1, 6)}
"""Fewest and most accounts."""
STEPS: Mapping[str, tuple[int, int]] = {"easy": (2, 10), "medium": (8, 24)}
"""Fewest and most steps."""


def bookkeeping(count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
    """Make ``count`` lists of steps, whose totals are asked for step by step."""
    chance = random.Random(f"bookkeeping {seed}")
    return [_problem(index, difficulty, chance) for index in range(count)]


def _problem(index: int, difficulty: Difficulty, chance: random.Random) -> Problem:
    names = chance.sample(NAMES, chance.randint(*ACCOUNTS[difficulty]))
    start = {name: chance.randint(5, 30) for name in names}
    steps = [
        (chance.choice(names), chance.randint(1, 9))
        for _ in range(chance.randint(*STEPS[difficulty]))
    ]
    totals, lines = dict(start), []
    for at, (name, change) in enumerate(steps, 1):
        totals[name] += change
        lines.append(f"Step {at}: {totals[name]}")
    opening = "\n".join(f"{name} has {coins}" for name, coins in start.items())
    asked = "\n".join(
        f"Step {at}: {name} gets {change}" for at, (name, change) in enumerate(steps, 1)
    )
    return Problem(
        id=f"bookkeeping-{index}",
        family="bookkeeping",
        question=(
            "Keep the accounts. For each step write the name, the sum and the new total.\n\n"
            "Example start:\nLeo has 10\nMia has 4\n"
            "Example steps:\nStep 1: Leo gets 3\nStep 2: Mia gets 2\nStep 3: Leo gets 5\n"
            "Example answer:\nStep 1: Leo 10 + 3 = 13\nStep 2: Mia 4 + 2 = 6\n"
            "Step 3: Leo 13 + 5 = 18\n\n"
            f"Start:\n{opening}\nSteps:\n{asked}\nAnswer:"
        ),
        answer="\n".join(lines),
        grading="lines",
        remember=f"{opening}\n{asked}",
        max_tokens=24 * len(steps) + 16,
    )
