"""The figure of a free-running comparison: what is right, against the memory that was held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from growpage.bench.answers_report import Summary
from growpage.bench.look import LIGHT, colours_by_name, marks_by_name, style

ACROSS = 3
"""Panels side by side, at most."""


def draw(
    file: Path, summaries: Mapping[str, Mapping[str, Summary]], lines: Mapping[str, str]
) -> None:
    """Draw a panel for each family, and in it its contenders' lines, by mean memory.

    Args:
        file: where it goes; its suffix decides the format.
        summaries: by family and contender.
        lines: each contender's line (:attr:`growpage.bench.contenders.Contender.line`).
    """
    with style(LIGHT):
        _draw(file, summaries, lines)


def _draw(
    file: Path, summaries: Mapping[str, Mapping[str, Summary]], lines: Mapping[str, str]
) -> None:
    across = min(len(summaries), ACROSS)
    down = -(-len(summaries) // across)
    figure = Figure(figsize=(3.8 * across, 3 * down + 1.2), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    while len(panels) > len(summaries):
        panels.pop().remove()
    colour = colours_by_name(lines.values())
    mark = marks_by_name(lines.values())
    for panel, (family, rows) in zip(panels, summaries.items(), strict=True):
        drawn: dict[str, list[Summary]] = defaultdict(list)
        for name, row in rows.items():
            drawn[lines[name]].append(row)
        for name, line in drawn.items():
            line.sort(key=lambda row: row.mean_bytes)
            score = [row.score for row in line]
            panel.errorbar(
                [row.mean_bytes / 2**20 for row in line],
                [each.value for each in score],
                yerr=[
                    [each.value - each.low for each in score],
                    [each.high - each.value for each in score],
                ],
                label=name,
                color=colour[name],
                marker=mark[name],
                markersize=4,
                linewidth=1.2,
                capsize=2,
            )
        panel.set(title=family, xlabel="MiB a request, mean", ylim=(0, 1.03))
        panel.grid(alpha=0.3)
    figure.supylabel("score, with 95% interval", fontsize="medium")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=across, frameon=False, fontsize="small"
    )
    figure.savefig(file)
