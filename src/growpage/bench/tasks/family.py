"""What all families have in common: drawn tasks become problems with examples before them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from growpage.bench.problems import Grading, Problem

Difficulty = Literal["easy", "medium"]
"""``easy`` is for models of about 135 million parameters, ``medium`` for 1.5 billion and more."""

Sizes = TypeVar("Sizes")

EXAMPLE_WORDS = 8
"""Words that occur in the examples alone: small models mix them up with the problem's."""

Range = tuple[int, int]
"""The least and the most."""


@dataclass(frozen=True)
class Task:
    """One drawn task."""

    question: str
    answer: str
    """As a model would write it, with its working."""
    remember: str
    """The text that must be remembered until the answer ends."""


@dataclass(frozen=True)
class Family(Generic[Sizes]):
    """How the problems of a family are made."""

    name: str
    grading: Grading
    sizes: Mapping[Difficulty, Sizes]
    """How large tasks are, by difficulty."""
    draw: Callable[[random.Random, Sizes, Sequence[str]], Task]
    """From chance, sizes, and the words that tasks are about."""
    words: Sequence[str]
    example: Mapping[Difficulty, Sizes]
    """How large those are that are shown solved, by difficulty."""
    shown: int = 2
    """Tasks that are shown solved before each problem, the same before all."""

    def problems(self, count: int, difficulty: Difficulty, seed: int) -> list[Problem]:
        """``count`` problems; the same seed gives the same."""
        chance = random.Random(f"{self.name} {difficulty} {seed}")
        words, sizes = self.words[:-EXAMPLE_WORDS], self.sizes[difficulty]
        shown = [
            self.draw(chance, self.example[difficulty], self.words[-EXAMPLE_WORDS:])
            for _ in range(self.shown)
        ]
        return [
            self._problem(index, self.draw(chance, sizes, words), shown) for index in range(count)
        ]

    def _problem(self, index: int, task: Task, shown: list[Task]) -> Problem:
        return Problem(
            id=f"{self.name}-{index}",
            family=self.name,
            question=task.question,
            answer=task.answer,
            examples=tuple((each.question, each.answer) for each in shown),
            grading=self.grading,
            remember=task.remember,
            # A token is at least a character, so that no right answer is cut.
            max_tokens=len(task.answer) + 16,
        )
