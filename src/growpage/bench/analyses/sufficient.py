"""The minimal sufficient budget B* of each request (the paper's Figure 2).

Answers given with full KV are replayed under the policy `fixed` at a ladder of budgets. A request's
B* is the least budget from which on its mean KL to full KV stays within a bound; budgets between
two rungs of the ladder were not tried, so B* is known up to the rung below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from growpage.bench.analyses.looks import colours_by_family
from growpage.bench.contenders import Contender
from growpage.bench.look import LIGHT, Theme, style
from growpage.bench.replay import Measurement
from growpage.budget.errors import ConfigError

EPSILON = 0.05
"""Mean KL to full KV, in nats a token, up to which a budget suffices."""

RUNG = 1.25
"""A budget of the default ladder over the one below it, where whole pages allow."""

ALL = "all"
"""All families together."""

SHOWN_KL = (1e-4, 10.0)
"""KL that the figure shows; what is outside is drawn at the edge."""


@dataclass(frozen=True)
class Need:
    """One request, and what it needs."""

    family: str | None
    length: int
    """Tokens of the prompt and of the answer."""
    kl: Mapping[int, float]
    """Mean over its tokens, by budget, in ascending order."""
    sufficient: int | None
    """B* in tokens, its length at most; none if not even the largest budget suffices."""

    @property
    def share(self) -> float | None:
        """B* over the length."""
        return None if self.sufficient is None else self.sufficient / self.length

    @property
    def rank(self) -> float:
        """B*, and infinity where there is none, so that requests can be sorted by it."""
        return inf if self.sufficient is None else float(self.sufficient)


def least_sufficient(kl: Mapping[int, float], epsilon: float) -> int | None:
    """The least budget from which on the KL stays at or below ``epsilon``.

    A lower budget that happens to keep the bound, below a higher one that does not, is luck.
    """
    found = None
    for budget in sorted(kl, reverse=True):
        if not kl[budget] <= epsilon:
            break
        found = budget
    return found


def ladder(longest: int, page: int, least: int) -> list[int]:
    """Budgets in whole pages, from ``least`` tokens to just below ``longest``, ever wider apart."""
    pages, top = -(-least // page), (longest - 1) // page
    rungs = []
    while pages <= top:
        rungs.append(pages * page)
        pages = max(pages + 1, round(pages * RUNG))
    if not rungs:
        raise ConfigError(
            f"the longest request has {longest} tokens, and the least budget is {least}: there is "
            "nothing to evict; ask for more --new-tokens"
        )
    return rungs


def rungs_of(budgets: Iterable[int]) -> list[Contender]:
    """The contenders of a ladder; none of them lacks pages."""
    return [
        Contender.of(f"fixed:budget={budget},pool=100%")
        for budget in sorted(dict.fromkeys(budgets))
    ]


def needs(measurement: Measurement, budgets: Iterable[int], epsilon: float) -> dict[str, Need]:
    """What each request needs, from the replays of :func:`rungs_of` these budgets."""
    replays = {part.contender.name: part.replay for part in measurement.parts}
    ladder = {
        rung.settings["budget"]: replays[rung.name] for rung in rungs_of(budgets) if rung.settings
    }
    found = {}
    for name, answer in measurement.reference.answers.items():
        kl = {budget: replay.requests[name].kl for budget, replay in ladder.items()}
        least = least_sufficient(kl, epsilon)
        found[name] = Need(
            family=measurement.families[name],
            length=answer.length,
            kl=kl,
            sufficient=None if least is None else min(least, answer.length),
        )
    return found


def summarise(found: Mapping[str, Need], epsilon: float) -> dict[str, Any]:
    """The report, ready for JSON."""
    families = sorted({need.family for need in found.values() if need.family is not None})
    groups = {ALL: list(found.values())} | {
        family: [need for need in found.values() if need.family == family] for family in families
    }
    return {
        "epsilon": epsilon,
        "budgets": list(next(iter(found.values())).kl),
        "spread": {name: _spread(group) for name, group in groups.items()},
        "requests": {
            name: {
                "family": need.family,
                "length": need.length,
                "sufficient": need.sufficient,
                "share": need.share,
                "kl": {str(budget): kl for budget, kl in need.kl.items()},
            }
            for name, need in found.items()
        },
    }


def _spread(group: Sequence[Need]) -> dict[str, Any]:
    """Percentiles are requests' own B*: none of a value that no request has."""
    ranks = [need.rank for need in group]
    shares = [inf if need.share is None else need.share for need in group]
    p10, p50, p90 = (_percentile(ranks, percent) for percent in (10, 50, 90))
    return {
        "requests": len(group),
        "none_suffices": sum(need.sufficient is None for need in group),
        "p10": p10,
        "p50": p50,
        "p90": p90,
        "ratio": p90 / p10 if p10 and p90 else None,
        "share_p10": _percentile(shares, 10),
        "share_p50": _percentile(shares, 50),
        "share_p90": _percentile(shares, 90),
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    """None where it is beyond the largest budget."""
    value = float(np.percentile(values, percent, method="inverted_cdf"))
    return value if isfinite(value) else None


def table(report: Mapping[str, Any]) -> Table:
    """A row for all requests, and one for each family."""
    largest = report["budgets"][-1]
    shown = Table(
        title=f"Least budget with KL to full KV at most {report['epsilon']:g} (B*), tokens",
        title_justify="left",
    )
    shown.add_column("requests")
    for column in ("how many", "p10", "p50", "p90", "p90 / p10", "of full length, p50", "none"):
        shown.add_column(column, justify="right")
    for name, row in report["spread"].items():
        shown.add_row(
            name,
            str(row["requests"]),
            *(f">{largest}" if row[p] is None else f"{row[p]:.0f}" for p in ("p10", "p50", "p90")),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "-" if row["share_p50"] is None else f"{row['share_p50']:.0%}",
            str(row["none_suffices"]),
        )
    if report["spread"][ALL]["none_suffices"]:
        shown.caption = f"none: not even the largest budget, {largest} tokens, suffices"
    return shown


def figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """Every request's B* in ascending order, and the KL at each budget that it follows from."""
    requests = list(report["requests"].values())
    colours = colours_by_family([row["family"] for row in requests], theme)
    with style(theme):
        drawn = Figure(figsize=(10, 4.4), layout="constrained")
        left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
        _draw_sorted(left, report, requests, colours, theme)
        _draw_curves(right, report, requests, colours, theme)
        drawn.suptitle(
            f"Least budget with a mean KL to full KV of at most {report['epsilon']:g} (B*)",
            x=0.01,
            ha="left",
            weight="bold",
        )
        handles, labels = left.get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    return drawn


def _draw_sorted(
    axes: Axes,
    report: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    colours: Mapping[str | None, str],
    theme: Theme,
) -> None:
    budgets = report["budgets"]
    ordered = sorted(requests, key=lambda row: (row["sufficient"] or inf, row["length"]))
    places = range(1, len(ordered) + 1)
    axes.scatter(
        places,
        [row["length"] for row in ordered],
        marker="_",
        s=60,
        color=theme.muted,
        label="its full length",
    )
    for family, colour in colours.items():
        mine = [
            (at, row) for at, row in zip(places, ordered, strict=True) if row["family"] == family
        ]
        known = [(at, row["sufficient"]) for at, row in mine if row["sufficient"] is not None]
        beyond = [at for at, row in mine if row["sufficient"] is None]
        for at, budget in known:
            below = max((each for each in budgets if each < budget), default=0)
            axes.plot((at, at), (below, budget), color=colour, linewidth=1, alpha=0.5)
        axes.scatter(
            [at for at, _ in known],
            [budget for _, budget in known],
            s=22,
            color=colour,
            label=family or "B*",
        )
        axes.scatter(
            beyond, [budgets[-1]] * len(beyond), s=30, marker="^", color="none", edgecolor=colour
        )
    spread = report["spread"][ALL]
    for name in ("p10", "p50", "p90"):
        if spread[name] is not None:
            axes.axhline(spread[name], color=theme.muted, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{name}: {spread[name]:.0f}",
                (1, spread[name]),
                xycoords=("axes fraction", "data"),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                size="small",
                color=theme.muted,
            )
    note = (
        "p90 is beyond the ladder"
        if spread["ratio"] is None
        else f"p90 / p10 = {spread['ratio']:.2f}"
    )
    if spread["none_suffices"]:
        note += f"; hollow: more than {budgets[-1]}"
    axes.set_title(note, loc="left")
    axes.set_xlabel("requests, by B* (bar: down to the budget tried below it)")
    axes.set_ylabel("tokens")
    axes.set_ylim(0)
    axes.set_xlim(0.3, len(ordered) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")


def _draw_curves(
    axes: Axes,
    report: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    colours: Mapping[str | None, str],
    theme: Theme,
) -> None:
    for row in requests:
        budgets, kl = zip(*((int(at), value) for at, value in row["kl"].items()), strict=True)
        axes.plot(
            budgets,
            np.clip(kl, *SHOWN_KL),
            color=colours[row["family"]],
            linewidth=0.9,
            alpha=0.6,
            marker=".",
            markersize=3,
        )
    axes.axhline(report["epsilon"], color=theme.text, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_title("the KL that it follows from", loc="left")
    axes.set_yscale("log")
    axes.set_ylim(SHOWN_KL[0] * 0.8, None)
    axes.set_xlabel("budget, tokens")
    axes.set_ylabel("mean KL to full KV, nats a token")
    axes.grid(axis="y")
