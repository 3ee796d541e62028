"""Lists of growing length, to copy or to sort."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from growpage.bench.tasks.family import Family, Range, Task
from growpage.bench.tasks.words import THINGS


@dataclass(frozen=True)
class Sizes:
    """How large tasks are."""

    items: Range
    below: int = 100
    """Numbers are smaller."""


def draw_copying(chance: random.Random, sizes: Sizes, words: Sequence[str]) -> Task:
    """Draw a list of words."""
    listed = ", ".join(chance.sample(words, chance.randint(*sizes.items)))
    return Task(question=f"Copy this list: {listed}", answer=listed, remember=listed)


def draw_sorting(chance: random.Random, sizes: Sizes, _: Sequence[str]) -> Task:
    """Draw a list of different numbers."""
    numbers = chance.sample(range(1, sizes.below), chance.randint(*sizes.items))
    listed = ", ".join(map(str, numbers))
    return Task(
        question=f"Sort these numbers, the smallest first: {listed}",
        answer=", ".join(map(str, sorted(numbers))),
        remember=listed,
    )


COPYING = Family(
    "copying",
    "list",
    sizes={"easy": Sizes((3, 12)), "medium": Sizes((8, 40))},
    draw=draw_copying,
    words=THINGS,
    example={"easy": Sizes((5, 8)), "medium": Sizes((5, 8))},
)
SORTING = Family(
    "sorting",
    "list",
    sizes={"easy": Sizes((2, 6), below=10), "medium": Sizes((3, 20))},
    draw=draw_sorting,
    words=(),
    example={"easy": Sizes((3, 6), below=10), "medium": Sizes((4, 8))},
    shown=6,
)
