"""Facts given early and asked for late, with a text that matters to nobody in between."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from growpage.bench.problems import Problem
from growpage.bench.tasks.words import COLOURS, NAMES, SENTENCES

if TYPE_CHECKING:
    from growpage.bench.tasks import Difficulty

FACTS: Mapping[str, tuple[int, int]] = {"easy": (1, 6), "medium": (2, 16)}
"""Fewest and most facts."""
FILLER: Mapping[str, tuple[int, int]] = {"easy": (2, 14), "medium": (4, 40)}
"""Fewest and most sentences between the facts and the question."""


def recall(count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
    """Make ``count`` problems; each asks for all of its facts, in another order."""
    chance = random.Random(f"recall {seed}")
    return [_problem(index, difficulty, chance) for index in range(count)]


def _problem(index: int, difficulty: Difficulty, chance: random.Random) -> Problem:
    names = chance.sample(NAMES, chance.randint(*FACTS[difficulty]))
    facts = {name: chance.choice(COLOURS) for name in names}
    filler = chance.choices(SENTENCES, k=chance.randint(*FILLER[difficulty]))
    asked = chance.sample(names, len(names))
    notes = "\n".join(f"{name}: {colour}" for name, colour in facts.items())
    return Problem(
        id=f"recall-{index}",
        family="recall",
        question=(
            f"Favourite colours:\n{notes}\n\nA story: {' '.join(filler)}\n\n"
            f"Write the favourite colours again, one line each in the form 'name: colour', for: "
            f"{', '.join(asked)}."
        ),
        answer="\n".join(f"{name}: {facts[name]}" for name in asked),
        grading="lines",
        remember=notes,
        max_tokens=12 * len(names) + 16,
    )
