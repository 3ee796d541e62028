"""Lists of growing length, to copy or to sort."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from growpage.bench.problems import Problem
from growpage.bench.tasks.words import THINGS

if TYPE_CHECKING:
    from growpage.bench.tasks import Difficulty

COPIED: Mapping[str, tuple[int, int]] = {"easy": (3, 24), "medium": (8, 40)}
"""Fewest and most words of a list to copy."""
SORTED: Mapping[str, tuple[int, int]] = {"easy": (2, 6), "medium": (3, 16)}
"""Fewest and most numbers of a list to sort."""


def copying(count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
    """Make ``count`` lists of words to copy."""
    chance = random.Random(f"copying {seed}")
    return [_copying(index, difficulty, chance) for index in range(count)]


def sorting(count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
    """Make ``count`` lists of numbers to sort, the smallest first."""
    chance = random.Random(f"sorting {seed}")
    return [_sorting(index, difficulty, chance) for index in range(count)]


def _copying(index: int, difficulty: Difficulty, chance: random.Random) -> Problem:
    words = chance.sample(THINGS, chance.randint(*COPIED[difficulty]))
    listed = ", ".join(words)
    return Problem(
        id=f"copying-{index}",
        family="copying",
        question=(
            "Copy the list exactly, on one line, and write nothing else.\n"
            f"List: sun, moon, star, cloud\nCopy: sun, moon, star, cloud\n\nList: {listed}\nCopy:"
        ),
        answer=listed,
        grading="list",
        remember=listed,
        max_tokens=4 * len(words) + 16,
    )


def _sorting(index: int, difficulty: Difficulty, chance: random.Random) -> Problem:
    numbers = chance.sample(range(1, 100), chance.randint(*SORTED[difficulty]))
    listed = ", ".join(map(str, numbers))
    return Problem(
        id=f"sorting-{index}",
        family="sorting",
        question=(
            "Sort the numbers from the smallest to the largest, and write nothing else.\n"
            "Numbers: 7, 2, 9\nSorted: 2, 7, 9\n"
            "Numbers: 31, 4, 18, 25\nSorted: 4, 18, 25, 31\n"
            f"Numbers: {listed}\nSorted:"
        ),
        answer=", ".join(map(str, sorted(numbers))),
        grading="list",
        remember=listed,
        max_tokens=5 * len(numbers) + 16,
    )
