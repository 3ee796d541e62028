"""The figure of a report on replays: KL against the memory that requests held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from growpage.bench.look import LIGHT, PALETTE, Theme, marks_by_name, style

LEAST = 1e-6
"""KL below which a contender lost nothing, and has no place on a logarithmic axis."""


def replay_figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """One panel a load, one line a policy; bars are the intervals of the mean.

    Args:
        report: of :func:`growpage.bench.replay_report.summarise`.
        theme: colours.
    """
    loads = report["loads"]
    looks = _looks(loads, theme)
    with style(theme):
        width = 1.2 + 4.4 * len(loads)
        columns = _legend_columns(looks, width)
        rows = -(-len(looks) // columns)
        figure = Figure(figsize=(width, 4 + 0.2 * rows), layout="constrained")
        panels = figure.subplots(1, len(loads), sharex=True, sharey=True, squeeze=False)[0]
        for panel, (load, contenders) in zip(panels, loads.items(), strict=True):
            _draw(panel, contenders, looks, theme)
            panel.set_title(f"{load} load", loc="left", weight="bold")
            panel.set_yscale("log")
            panel.set_xlim(0)
            panel.set_xlabel("KV memory that a request holds, MiB")
            panel.grid(axis="y")
        panels[0].set_ylabel("KL to full KV, nats a token")
        # An interval may reach down to nothing; the figure ends below the least mean.
        panels[0].set_ylim(bottom=_least(loads) / 3)
        figure.suptitle("What eviction costs, at the memory held", x=0.01, ha="left", weight="bold")
        handles: dict[str, Any] = {}
        for panel in panels:
            handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=columns,
            fontsize=8,
        )
    return figure


def _legend_columns(names: Iterable[str], width: float) -> int:
    """As many as fit side by side into ``width`` inches, three at most."""
    inches = 0.6 + 0.07 * max(map(len, names), default=0)
    return max(1, min(3, int(width / inches)))


def _least(loads: Mapping[str, Mapping[str, Any]]) -> float:
    """The least mean KL that is drawn."""
    means = [each["kl"]["value"] for rows in loads.values() for each in rows.values()]
    return min((kl for kl in means if kl > LEAST), default=LEAST)


def _looks(loads: Mapping[str, Mapping[str, Any]], theme: Theme) -> dict[str, tuple[str, str]]:
    """Colour and marker by line."""
    names = dict.fromkeys(each["line"] for rows in loads.values() for each in rows.values())
    fixed = {name: colour for name, colour in theme.lines.items() if name in names}
    free = [colour for colour in PALETTE if colour not in fixed.values()]
    others = [name for name in names if name not in fixed]
    colours = fixed | {name: free[index % len(free)] for index, name in enumerate(others)}
    return {name: (colours[name], mark) for name, mark in marks_by_name(names).items()}


def _draw(
    axes: Axes,
    contenders: Mapping[str, Mapping[str, Any]],
    looks: Mapping[str, tuple[str, str]],
    theme: Theme,
) -> None:
    for line, (colour, marker) in looks.items():
        points = sorted(
            (
                (each["mean_bytes"] / 2**20, each["kl"])
                for each in contenders.values()
                if each["line"] == line and each["kl"]["value"] > LEAST
            ),
            key=itemgetter(0),
        )
        if points:
            memory, kl = zip(*points, strict=True)
            values = [each["value"] for each in kl]
            bars = [
                [each["value"] - max(each["low"], LEAST) for each in kl],
                [each["high"] - each["value"] for each in kl],
            ]
            axes.errorbar(
                memory,
                values,
                yerr=[[max(bar, 0.0) for bar in side] for side in bars],
                color=colour,
                marker=marker,
                markersize=4.5,
                elinewidth=0.8,
                label=line,
            )
    for name, each in contenders.items():
        if each["kl"]["value"] <= LEAST:
            axes.axvline(
                each["mean_bytes"] / 2**20,
                color=theme.muted,
                linewidth=1,
                linestyle=(0, (4, 3)),
                label=f"{name}: nothing lost",
            )
