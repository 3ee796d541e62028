"""What all figures look like: colours, type, and how they are saved.

Colours are from Okabe and Ito's palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from typing import TypeVar

from matplotlib import rc_context
from matplotlib.figure import Figure

Name = TypeVar("Name", bound=Hashable)

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1b1f24", "#8b949e")
"""For lines that no theme has a colour for, in this order."""

MARKERS = "osD^vPX<>"
"""For lines, in this order."""


@dataclass(frozen=True)
class Theme:
    """Colours of one colour scheme."""

    background: str
    text: str
    muted: str
    grid: str
    alert: str
    lines: Mapping[str, str]
    """By policy; others get ``text``."""


LIGHT = Theme(
    background="#ffffff",
    text="#1b1f24",
    muted="#59636e",
    grid="#e4e8ec",
    alert="#b3261e",
    lines={
        "plain": "#8b949e",
        "full": "#59636e",
        "fixed": "#0072B2",
        "growpage": "#D55E00",
        "every": "#CC79A7",
        "elastic": "#009E73",
        "thin": "#B8860B",
    },
)
DARK = Theme(
    background="#15191e",
    text="#e8ecf0",
    muted="#9aa4ae",
    grid="#2a3138",
    alert="#ff8a80",
    lines={
        "plain": "#7d8590",
        "full": "#b4bcc4",
        "fixed": "#56B4E9",
        "growpage": "#F0803C",
        "every": "#CC79A7",
        "elastic": "#2BC49A",
        "thin": "#E3B341",
    },
)


def colours_by_name(names: Iterable[Name]) -> dict[Name, str]:
    """A colour for each different name, in the order in which they come."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(dict.fromkeys(names))}


def marks_by_name(names: Iterable[Name]) -> dict[Name, str]:
    """A marker for each different name, in the order in which they come: there are more of them
    than colours, so that two names with one colour differ in it."""
    return {name: MARKERS[index % len(MARKERS)] for index, name in enumerate(dict.fromkeys(names))}


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """The figure as a PNG file."""
    return _saved(figure, "png", dpi)


def to_svg(figure: Figure) -> bytes:
    """The figure as an SVG file, text drawn as outlines so that it needs no font."""
    return _saved(figure, "svg", 72)


def _saved(figure: Figure, kind: str, dpi: int) -> bytes:
    file = BytesIO()
    figure.savefig(file, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def style(theme: Theme) -> AbstractContextManager[None]:
    """What all figures have in common, for as long as one is made."""
    return rc_context(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": theme.muted,
            "axes.facecolor": theme.background,
            "axes.labelcolor": theme.muted,
            "axes.axisbelow": True,
            "figure.facecolor": theme.background,
            "savefig.facecolor": theme.background,
            "text.color": theme.text,
            "xtick.color": theme.muted,
            "ytick.color": theme.muted,
            "grid.color": theme.grid,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "svg.hashsalt": "growpage",
        }
    )
