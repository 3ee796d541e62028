"""Attention sparsity and demand over the course of decoding, with full KV (the paper's Figure 3).

Demand is measured once a page, so that all requests are measured at the same lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from growpage.bench.analyses.correlation import as_json, share, show, spearman
from growpage.bench.analyses.observe import Course, Observed, Point
from growpage.bench.look import LIGHT, Theme, colours_by_name, style
from growpage.bench.statistics import Estimate
from growpage.budget.errors import ConfigError

MASSES = (0.8, 0.9, 0.95)

Quantity = Callable[[Point], float | None]


def _loss(pages: int) -> Quantity:
    return lambda point: (
        point.demand.losses[pages - 1] if len(point.demand.losses) >= pages else None
    )


QUANTITIES: dict[str, Quantity] = {
    "short": lambda point: point.demand.short,
    "long": lambda point: point.demand.long,
    "sparsity": lambda point: point.demand.short / point.demand.cached,
    "delta": lambda point: point.demand.delta,
    "loss_1": _loss(1),
    "loss_2": _loss(2),
    "loss_3": _loss(3),
    "loss_4": _loss(4),
    "entropy": lambda point: point.demand.entropy,
    "density": lambda point: point.demand.density,
}
"""What is drawn: D_p of both summaries in tokens, the short one's over the tokens cached, their
difference, the attention mass that is lost with 1 to 4 pages fewer, the entropy in nats, and how
settled it is."""


def courses_of(observed: Observed) -> dict[str, Course]:
    """The requests that were measured at least once.

    Raises:
        ConfigError: none was.
    """
    found = {name: course for name, course in observed.courses.items() if course.points}
    if not found:
        raise ConfigError(
            "no request was measured: their answers end before a page is full; ask for more "
            "--new-tokens, or other questions"
        )
    return found


def average(courses: Mapping[str, Course], quantity: Quantity) -> list[dict[str, float]]:
    """Mean, quartiles and number of requests at each length, in ascending order."""
    at: dict[int, list[float]] = {}
    for course in courses.values():
        for point in course.points:
            value = quantity(point)
            if value is not None:
                at.setdefault(point.position, []).append(value)
    return [
        {
            "position": position,
            "mean": float(np.mean(values)),
            "q25": float(np.quantile(values, 0.25)),
            "q75": float(np.quantile(values, 0.75)),
            "requests": len(values),
        }
        for position, values in sorted(at.items())
    ]


def summarise(observed: Mapping[float, Observed], seed: int = 0) -> dict[str, Any]:
    """The report, ready for JSON: by mass."""
    return {
        "masses": {
            f"{mass:g}": {
                "measured": each.provenance.date,
                "measured_by": each.contender.settings,
                **_summary(courses_of(each), seed),
            }
            for mass, each in observed.items()
        }
    }


def _summary(courses: Mapping[str, Course], seed: int) -> dict[str, Any]:
    owners, points = zip(*points_of(courses), strict=True)
    short = [point.demand.short for point in points]
    return {
        "measurements": len(points),
        "sparsity": _ends(courses, QUANTITIES["sparsity"]),
        "short": _ends(courses, QUANTITIES["short"]),
        "delta": float(np.mean([point.demand.delta for point in points])),
        "positive_deltas": asdict(share_of_positive(courses, seed)),
        "short_and_length": as_json(
            spearman(short, [float(point.position) for point in points], owners, seed)
        ),
        "course": {name: average(courses, of) for name, of in QUANTITIES.items()},
        "requests": {
            name: {
                "prompt_tokens": course.prompt_tokens,
                "answer_tokens": course.answer_tokens,
                "points": [
                    {"position": point.position}
                    | {name: of(point) for name, of in QUANTITIES.items()}
                    for point in course.points
                ],
            }
            for name, course in courses.items()
        },
    }


def points_of(courses: Mapping[str, Course]) -> Iterator[tuple[str, Point]]:
    """All measurements, with the name of their request."""
    for name, course in courses.items():
        for point in course.points:
            yield name, point


def share_of_positive(courses: Mapping[str, Course], seed: int = 0) -> Estimate:
    """Share of the boundaries at which attention was wider than it used to be."""
    owners, points = zip(*points_of(courses), strict=True)
    return share([point.demand.delta > 0 for point in points], owners, seed)


def _ends(courses: Mapping[str, Course], quantity: Quantity) -> dict[str, float]:
    """Mean over requests of the first and of the last measurement."""
    firsts = [quantity(course.points[0]) for course in courses.values()]
    lasts = [quantity(course.points[-1]) for course in courses.values()]
    return {
        name: float(np.mean([value for value in values if value is not None]))
        for name, values in (("first", firsts), ("last", lasts))
    }


def table(report: Mapping[str, Any]) -> Table:
    """A row for each mass."""
    shown = Table(
        title="Demand with full KV: from the first measurement to the last, mean over requests",
        title_justify="left",
    )
    for column in (
        "p",
        "requests",
        "measurements",
        "D_p, tokens",
        "D_p / cached",
        "mean delta",
        "positive deltas",
        "D_p with length, rho",
    ):
        shown.add_column(column, justify="right")
    for mass, row in report["masses"].items():
        shown.add_row(
            mass,
            str(len(row["requests"])),
            str(row["measurements"]),
            f"{row['short']['first']:.0f} -> {row['short']['last']:.0f}",
            f"{row['sparsity']['first']:.0%} -> {row['sparsity']['last']:.0%}",
            f"{row['delta']:+.1f}",
            Estimate(**row["positive_deltas"]).show(".0%"),
            show(row["short_and_length"]),
        )
    return shown


def figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """Six panels over the logical length; bands are quartiles over requests, thin lines requests.

    What depends on p and is not drawn for all is drawn for 0.9, or for the middle one.
    """
    masses = report["masses"]
    shown = "0.9" if "0.9" in masses else list(masses)[len(masses) // 2]
    main = masses[shown]
    blue, orange, green = (theme.lines[name] for name in ("fixed", "growpage", "every"))
    with style(theme):
        drawn = Figure(figsize=(11.5, 6.6), layout="constrained")
        panels = drawn.subplots(2, 3, sharex=True)
        (sizes, sparsity, delta), (losses, entropy, count) = panels

        _title(sizes, f"working set, p = {shown}", "D_p, tokens")
        _draw_requests(sizes, main, "short", blue)
        _draw_mean(sizes, main, "short", blue, "short summary")
        _draw_mean(sizes, main, "long", orange, "long summary")

        _title(sparsity, "sparsity: share of the cache that holds p", "D_p(short) / cached")
        for mass, colour in colours_by_name(masses).items():
            _draw_mean(sparsity, masses[mass], "sparsity", colour, f"p = {mass}")

        _title(delta, f"delta, p = {shown}", "D_p(short) - D_p(long), tokens")
        delta.axhline(0, color=theme.text, linewidth=0.8)
        _draw_requests(delta, main, "delta", blue)
        _draw_mean(delta, main, "delta", blue, "mean")

        _title(losses, "predicted loss", "share of attention mass")
        for name, colour in colours_by_name(f"loss_{pages}" for pages in range(1, 5)).items():
            pages = int(name[-1])
            label = f"{pages} page{'s' * (pages > 1)} fewer"
            _draw_mean(losses, main, name, colour, label, band=False)

        _title(entropy, "attention entropy, one layer", "nats")
        _draw_requests(entropy, main, "entropy", green)
        _draw_mean(entropy, main, "entropy", green, "mean")

        _title(count, "requests that were measured", "requests")
        course = main["course"]["short"]
        count.step(
            [each["position"] for each in course],
            [each["requests"] for each in course],
            where="mid",
            color=theme.muted,
        )
        count.set_ylim(0)
        for axes in panels.flat:
            axes.grid(axis="y")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
        for axes in (sizes, sparsity, losses):
            axes.set_ylim(0)
        drawn.supxlabel("length of prompt and answer, tokens", color=theme.muted, size="medium")
        drawn.suptitle(
            "Demand over the course of decoding, with full KV", x=0.01, ha="left", weight="bold"
        )
    return drawn


def _title(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_ylabel(unit)


def _draw_requests(axes: Axes, row: Mapping[str, Any], quantity: str, colour: str) -> None:
    for request in row["requests"].values():
        points = [each for each in request["points"] if each[quantity] is not None]
        axes.plot(
            [each["position"] for each in points],
            [each[quantity] for each in points],
            color=colour,
            linewidth=0.5,
            alpha=0.45,
        )


def _draw_mean(
    axes: Axes,
    row: Mapping[str, Any],
    quantity: str,
    colour: str,
    label: str,
    *,
    band: bool = True,
) -> None:
    course = row["course"][quantity]
    at = [each["position"] for each in course]
    axes.plot(at, [each["mean"] for each in course], color=colour, label=label)
    if band:
        low, high = ([each[name] for each in course] for name in ("q25", "q75"))
        axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
