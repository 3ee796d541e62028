"""Task families: problems made from a seed, whose demand of memory is known.

Each module makes the problems of a family. Every problem states what must be remembered, and how
much that is varies from problem to problem, unrelated to the length of the prompt where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from growpage.bench.problems import Problem
from growpage.bench.tasks.bookkeeping import bookkeeping
from growpage.bench.tasks.lists import copying, sorting
from growpage.bench.tasks.recall import recall
from growpage.bench.tasks.series import series

Difficulty = Literal["easy", "medium"]
"""``easy`` is for models of about 135 million parameters, ``medium`` for 1.5 billion and more."""

FAMILIES: Mapping[str, Callable[[int, Difficulty, int], list[Problem]]] = {
    "recall": recall,
    "copying": copying,
    "sorting": sorting,
    "series": series,
    "bookkeeping": bookkeeping,
}
"""A family's problems, from their number, the difficulty and a seed."""
