"""Colours of the requests' families, in the figures of all analyses."""

from __future__ import annotations

from collections.abc import Sequence

from growpage.bench.look import Theme, colours_by_name


def colours_by_family(families: Sequence[str | None], theme: Theme) -> dict[str | None, str]:
    """A colour for each family, in alphabetical order, and then one for requests of none."""
    colours: dict[str | None, str] = {
        **colours_by_name(sorted({family for family in families if family is not None}))
    }
    if None in families:
        colours[None] = theme.muted if colours else theme.lines["fixed"]
    return colours
