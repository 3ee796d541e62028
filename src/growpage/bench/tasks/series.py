"""Several problems solved one after another in one answer, from one table of facts.

The table must be kept over the whole of the model's own answer, however long that is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from growpage.bench.tasks.family import Family, Range, Task
from growpage.bench.tasks.words import THINGS


@dataclass(frozen=True)
class Sizes:
    """How large tasks are."""

    things: Range
    """That have a price."""
    problems: Range
    terms: int
    """Prices to look up in a problem, and to add where it is more than one."""


def draw(chance: random.Random, sizes: Sizes, words: Sequence[str]) -> Task:
    """Draw one task."""
    things = chance.sample(words, chance.randint(*sizes.things))
    price = {thing: chance.randint(1, 9) for thing in things}
    asked = [chance.sample(things, sizes.terms) for _ in range(chance.randint(*sizes.problems))]
    table = "\n".join(f"{thing}: {cost}" for thing, cost in price.items())
    problems = "\n".join(f"{at}. {' + '.join(terms)}" for at, terms in enumerate(asked, 1))
    return Task(
        question=f"Prices:\n{table}\n\nProblems:\n{problems}",
        answer="\n".join(f"{at}. {_worked(terms, price)}" for at, terms in enumerate(asked, 1)),
        remember=f"{table}\n{problems}",
    )


def _worked(terms: list[str], price: dict[str, int]) -> str:
    """``apple: 4``, or ``apple + hat: 4 + 3 = 7``."""
    costs = [price[term] for term in terms]
    total = "" if len(terms) == 1 else f" = {sum(costs)}"
    return f"{' + '.join(terms)}: {' + '.join(map(str, costs))}{total}"


SERIES = Family(
    "series",
    "lines",
    sizes={
        "easy": Sizes(things=(2, 6), problems=(2, 10), terms=1),
        "medium": Sizes(things=(3, 16), problems=(6, 24), terms=2),
    },
    draw=draw,
    words=THINGS,
    example={
        "easy": Sizes(things=(3, 4), problems=(4, 6), terms=1),
        "medium": Sizes(things=(3, 4), problems=(3, 4), terms=2),
    },
)
