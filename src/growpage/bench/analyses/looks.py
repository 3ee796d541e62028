"""Colours that the figures of all analyses share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from growpage.bench.figures import Theme
from growpage.bench.replay_figure import COLOURS

Name = TypeVar("Name", bound=Hashable)


def colours_by_name(names: Iterable[Name], palette: Sequence[str] = COLOURS) -> dict[Name, str]:
    """A colour for each different name, in the order in which they come."""
    return {name: palette[index % len(palette)] for index, name in enumerate(dict.fromkeys(names))}


def colours_by_family(families: Sequence[str | None], theme: Theme) -> dict[str | None, str]:
    """A colour for each family, in alphabetical order, and then one for requests of none."""
    colours: dict[str | None, str] = {
        **colours_by_name(sorted({family for family in families if family is not None}))
    }
    if None in families:
        colours[None] = theme.muted if colours else theme.lines["fixed"]
    return colours
