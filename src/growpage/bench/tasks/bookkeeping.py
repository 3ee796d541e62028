"""Accounts kept over many steps, with every new total written out.

A step changes one account, whose last total may stand far back in the model's own answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from growpage.bench.tasks.family import Family, Range, Task
from growpage.bench.tasks.words import NAMES


@dataclass(frozen=True)
class Sizes:
    """How large tasks are."""

    accounts: Range
    steps: Range
    most: int
    """Added in one step, at most."""


def draw(chance: random.Random, sizes: Sizes, words: Sequence[str]) -> Task:
    """Draw one task."""
    names = chance.sample(words, chance.randint(*sizes.accounts))
    total = {name: chance.randint(1, 9) for name in names}
    opening = "\n".join(f"{name} has {coins}" for name, coins in total.items())
    steps, lines = [], []
    for at in range(1, chance.randint(*sizes.steps) + 1):
        name, change = chance.choice(names), chance.randint(1, sizes.most)
        steps.append(f"Step {at}: {name} + {change}")
        lines.append(f"Step {at}: {name} {total[name]} + {change} = {total[name] + change}")
        total[name] += change
    listed = "\n".join(steps)
    return Task(
        question=f"{opening}\n\n{listed}",
        answer="\n".join(lines),
        remember=f"{opening}\n{listed}",
    )


BOOKKEEPING = Family(
    "bookkeeping",
    "lines",
    sizes={
        "easy": Sizes(accounts=(1, 1), steps=(2, 12), most=1),
        "medium": Sizes(accounts=(1, 8), steps=(8, 24), most=9),
    },
    draw=draw,
    words=NAMES,
    example={
        "easy": Sizes(accounts=(1, 1), steps=(5, 8), most=1),
        "medium": Sizes(accounts=(2, 3), steps=(5, 6), most=9),
    },
)
