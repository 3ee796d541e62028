"""Whether a policy gives capacity to those that need it (the paper's appendix I).

The capacity that each request held under a policy, on average and at its peak, against the B* that
it gets by with (:mod:`.sufficient`). Both grow with a request's length, and a policy that looks at
nothing else follows B* too; so the correlation that is left at equal length stands beside it.
`fixed` gives the same to all and is the control.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from growpage.bench.analyses.correlation import as_json, partial_spearman, show, spearman
from growpage.bench.analyses.looks import colours_by_family
from growpage.bench.analyses.sufficient import Need
from growpage.bench.contenders import Contender
from growpage.bench.forced_replay import Held
from growpage.bench.look import LIGHT, Theme, style
from growpage.bench.replay import Measurement, Part
from growpage.bench.statistics import Estimate

ADAPTIVE = ("growpage", "every", "elastic")
"""Compared by default, beside `fixed`; `every` grows at a rate without a signal."""

HELD: dict[str, Callable[[Held], float]] = {
    "mean": lambda held: held.mean_pages,
    "peak": lambda held: held.peak_pages,
}

FLAT = "does not vary"
NOTHING_LEFT = "-"
"""Capacity, or B*, that follows from the length alone."""


def default_contenders(budgets: Sequence[int]) -> list[Contender]:
    """The adaptive policies, and `fixed` at the middle of the ladder."""
    middle = budgets[len(budgets) // 2]
    return [Contender.of(text) for text in (*ADAPTIVE, f"fixed:budget={middle}")]


def summarise(
    measurement: Measurement,
    needs: Mapping[str, Need],
    contenders: Sequence[str],
    seed: int = 0,
) -> dict[str, Any]:
    """The report, ready for JSON.

    Args:
        measurement: has the contenders' replays.
        needs: what each request needs.
        contenders: names of those that are compared.
        seed: of the bootstrap.
    """
    parts = {part.contender.name: part for part in measurement.parts}
    lengths = {name: float(need.length) for name, need in needs.items()}
    return {
        "length_and_need": as_json(_against(lengths, needs, seed)),
        "needs": {
            name: {"family": need.family, "length": need.length, "sufficient": need.sufficient}
            for name, need in needs.items()
        },
        "contenders": {
            name: _contender(parts[name], measurement.setup.block_size, needs, lengths, seed)
            for name in contenders
        },
    }


def _contender(
    part: Part,
    page: int,
    needs: Mapping[str, Need],
    lengths: Mapping[str, float],
    seed: int,
) -> dict[str, Any]:
    held = {
        kind: {name: page * of(part.replay.requests[name].held) for name in needs}
        for kind, of in HELD.items()
    }
    return {
        "settings": part.contender.settings,
        "pool_pages": part.pool_pages,
        "kl": part.replay.kl,
        "measured": part.provenance.date,
        "mean": sum(held["mean"].values()) / len(needs),
        "peak": sum(held["peak"].values()) / len(needs),
        "correlation": {
            kind: {
                "with_need": as_json(_against(tokens, needs, seed)),
                "with_need_at_equal_length": as_json(_against(tokens, needs, seed, lengths)),
            }
            for kind, tokens in held.items()
        },
        "requests": {
            name: {kind: tokens[name] for kind, tokens in held.items()}
            | {"kl": part.replay.requests[name].kl}
            for name in needs
        },
    }


def _against(
    tokens: Mapping[str, float],
    needs: Mapping[str, Need],
    seed: int,
    given: Mapping[str, float] | None = None,
) -> Estimate | None:
    names = list(needs)
    ours = [tokens[name] for name in names]
    theirs = [needs[name].rank for name in names]
    if given is None:
        return spearman(ours, theirs, names, seed)
    return partial_spearman(ours, theirs, [given[name] for name in names], names, seed)


def table(report: Mapping[str, Any]) -> Table:
    """A row for each contender."""
    shown = Table(
        title="Capacity held against the least that suffices (B*): Spearman's rho over requests",
        title_justify="left",
        caption=f"length alone with B*: {show(report['length_and_need'], FLAT)}",
        caption_justify="left",
    )
    shown.add_column("contender")
    for column in (
        "KL",
        "tokens held, mean",
        "peak",
        "mean with B*",
        "at equal length",
        "peak with B*",
        "at equal length",
    ):
        shown.add_column(column, justify="right")
    for name, row in report["contenders"].items():
        shown.add_row(
            name,
            f"{row['kl']:.4f}",
            f"{row['mean']:.0f}",
            f"{row['peak']:.0f}",
            *(
                show(row["correlation"][kind][which], otherwise)
                for kind in HELD
                for which, otherwise in (
                    ("with_need", FLAT),
                    ("with_need_at_equal_length", NOTHING_LEFT),
                )
            ),
        )
    return shown


def figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """One panel a contender: what each request held against its B*; bars reach to the peak."""
    contenders = report["contenders"]
    needs = report["needs"]
    colours = colours_by_family([need["family"] for need in needs.values()], theme)
    columns = min(4, len(contenders))
    rows = -(-len(contenders) // columns)
    with style(theme):
        drawn = Figure(figsize=(1 + 3.1 * columns, 0.9 + 3.4 * rows), layout="constrained")
        panels = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes in panels.flat[len(contenders) :]:
            axes.set_visible(False)
        top = max(
            1.05
            * max(each["peak"] for row in contenders.values() for each in row["requests"].values()),
            1.05 * max(need["length"] for need in needs.values()),
        )
        for axes, (name, row) in zip(panels.flat, contenders.items(), strict=False):
            _draw(axes, row, needs, colours, top, theme)
            rho = show(row["correlation"]["mean"]["with_need"], FLAT)
            axes.set_title(f"{name}\nrho {rho}", loc="left", size="small")
        panels[0][0].set_xlim(0, top)
        panels[0][0].set_ylim(0, top)
        drawn.supxlabel(
            "B*, tokens (hollow: beyond the largest budget, drawn at the full length)",
            size="medium",
        )
        drawn.supylabel("held, tokens: mean, and up to the peak", size="medium")
        drawn.suptitle(
            "Capacity given, against the least that suffices", x=0.01, ha="left", weight="bold"
        )
        if len(colours) > 1:
            drawn.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper")
    return drawn


def _draw(
    axes: Axes,
    row: Mapping[str, Any],
    needs: Mapping[str, Any],
    colours: Mapping[str | None, str],
    top: float,
    theme: Theme,
) -> None:
    axes.plot((0, top), (0, top), color=theme.muted, linewidth=0.8, linestyle=(0, (4, 3)))
    for family, colour in colours.items():
        names = [name for name, need in needs.items() if need["family"] == family]
        for known in (True, False):
            mine = [name for name in names if (needs[name]["sufficient"] is not None) == known]
            at = [needs[name]["sufficient"] or needs[name]["length"] for name in mine]
            held = [row["requests"][name] for name in mine]
            axes.vlines(
                at,
                [each["mean"] for each in held],
                [each["peak"] for each in held],
                color=colour,
                linewidth=0.8,
                alpha=0.6,
            )
            axes.scatter(
                at,
                [each["mean"] for each in held],
                s=20,
                color=colour if known else "none",
                edgecolor=colour,
                label=(family or "no family") if known else None,
            )
    axes.grid()
