"""Problems by the names that a command line gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from growpage.bench.problems import (
    PUBLIC,
    Problem,
    ProblemError,
    read_jsonl,
    read_public,
    require_unique,
)
from growpage.bench.tasks import FAMILIES, Difficulty


def read_sources(sources: Sequence[str], count: int, difficulty: str, seed: int) -> list[Problem]:
    """``count`` problems of each source: a JSONL file, a public data set or a family of ours.

    Raises:
        ProblemError: a source is none of them or holds too few, or two problems have the same id.
    """
    problems: list[Problem] = []
    for source in sources:
        if source in FAMILIES:
            problems += FAMILIES[source].problems(count, _difficulty(difficulty), seed)
        elif source in PUBLIC:
            problems += read_public(source, count)
        elif Path(source).is_file():
            problems += read_jsonl(Path(source), count)
        else:
            raise ProblemError(
                f"{source!r} is neither a file nor one of {', '.join([*FAMILIES, *PUBLIC])}"
            )
    require_unique(problems)
    return problems


def _difficulty(name: str) -> Difficulty:
    for known in get_args(Difficulty):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ProblemError(f"difficulty {name!r} is not one of {', '.join(get_args(Difficulty))}")
