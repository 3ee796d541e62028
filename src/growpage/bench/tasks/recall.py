"""Facts given early and asked for late, with a text that matters to nobody in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from growpage.bench.tasks.family import Family, Range, Task
from growpage.bench.tasks.words import NAMES, SENTENCES, THINGS


@dataclass(frozen=True)
class Sizes:
    """How large tasks are."""

    facts: Range
    asked: int
    """Facts that are asked for, at most; which is not known until the question comes."""
    sentences: Range
    """Between the facts and the question."""


def draw(chance: random.Random, sizes: Sizes, words: Sequence[str]) -> Task:
    """Draw one task."""
    names = chance.sample(words, chance.randint(*sizes.facts))
    facts = dict(zip(names, chance.sample(THINGS, len(names)), strict=True))
    story = " ".join(chance.choices(SENTENCES, k=chance.randint(*sizes.sentences)))
    asked = chance.sample(names, min(sizes.asked, len(names)))
    notes = "\n".join(f"{name}: {thing}" for name, thing in facts.items())
    return Task(
        question=(f"Presents:\n{notes}\n\n{story}\n\nWhat are the presents of {', '.join(asked)}?"),
        answer="\n".join(f"{name}: {facts[name]}" for name in asked),
        remember=notes,
    )


RECALL = Family(
    "recall",
    "lines",
    sizes={
        "easy": Sizes(facts=(2, 7), asked=3, sentences=(1, 6)),
        "medium": Sizes(facts=(4, 20), asked=8, sentences=(4, 40)),
    },
    draw=draw,
    words=NAMES,
    example={
        "easy": Sizes(facts=(3, 5), asked=3, sentences=(1, 1)),
        "medium": Sizes(facts=(3, 4), asked=2, sentences=(1, 2)),
    },
)
