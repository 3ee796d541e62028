"""Task families: problems made from a seed, whose demand of memory is known.

Each module makes the problems of a family. Every problem states what must be remembered until its
answer ends, and how much that is varies from problem to problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from growpage.bench.tasks.bookkeeping import BOOKKEEPING
from growpage.bench.tasks.family import Difficulty, Family
from growpage.bench.tasks.lists import COPYING, SORTING
from growpage.bench.tasks.recall import RECALL
from growpage.bench.tasks.series import SERIES

__all__ = ["FAMILIES", "Difficulty", "Family"]

FAMILIES: Mapping[str, Family[Any]] = {
    family.name: family for family in (RECALL, COPYING, SORTING, SERIES, BOOKKEEPING)
}
"""All families by name."""
