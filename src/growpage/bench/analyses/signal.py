"""Whether the demand signal tells how demand will change (the paper decides by it).

At each boundary, with full KV, what was measured there is held against the change of D_p(short) in
the time to come. A change that starts at the very boundary shares its noise with the signal: where
D_p(short) is measured too high by chance, delta is too high, and the change from there too low. A
correlation of the two is below zero even if the signal says nothing. So the change from the next
boundary on, which shares nothing, stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from growpage.bench.analyses.correlation import as_json, show, spearman
from growpage.bench.analyses.demand import QUANTITIES, courses_of, share_of_positive
from growpage.bench.analyses.observe import Course, Observed, Point
from growpage.bench.look import LIGHT, Theme, colours_by_name, style
from growpage.bench.replay_table import NOT_RESOLVED
from growpage.bench.statistics import Estimate
from growpage.budget.errors import ConfigError


@dataclass(frozen=True)
class Span:
    """A time to come, in boundaries from the one at which the signal was measured."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.begin} to {self.end}"


SPANS = (Span(0, 1), Span(0, 2), Span(0, 4), Span(1, 2))

SIGNALS: dict[str, Callable[[Point], float | None]] = {
    "delta": QUANTITIES["delta"],
    "D_p(short)": QUANTITIES["short"],
    "D_p(long)": QUANTITIES["long"],
    "predicted loss": QUANTITIES["loss_1"],
    "entropy": QUANTITIES["entropy"],
    "cached tokens": lambda point: float(point.demand.cached),
}
"""What a policy could decide by; the last one needs no measurement, and is the control."""


@dataclass(frozen=True)
class Pair:
    """A signal at a boundary, and what came after it."""

    request: str
    signal: float
    later: float


def changes(
    courses: Mapping[str, Course], signal: Callable[[Point], float | None], span: Span
) -> Iterator[Pair]:
    """The signal at each boundary, and the change of D_p(short) over the span from there."""
    for name, course in courses.items():
        points = course.points
        for at, then, later in zip(points, points[span.begin :], points[span.end :], strict=False):
            value = signal(at)
            if value is not None:
                yield Pair(name, value, later.demand.short - then.demand.short)


def following(
    courses: Mapping[str, Course], signal: Callable[[Point], float | None], lag: int = 1
) -> Iterator[Pair]:
    """The signal at each boundary, and at the one ``lag`` later."""
    for name, course in courses.items():
        for at, later in zip(course.points, course.points[lag:], strict=False):
            value, then = signal(at), signal(later)
            if value is not None and then is not None:
                yield Pair(name, value, then)


def correlation(pairs: Iterator[Pair], seed: int = 0) -> dict[str, Any]:
    """Spearman's over all pairs, with an interval over requests; null where there is none."""
    taken = list(pairs)
    found = spearman(
        [pair.signal for pair in taken],
        [pair.later for pair in taken],
        [pair.request for pair in taken],
        seed,
    )
    return {
        "pairs": len(taken),
        "requests": len({pair.request for pair in taken}),
        "rho": as_json(found),
    }


def summarise(observed: Observed, seed: int = 0) -> dict[str, Any]:
    """The report, ready for JSON.

    Raises:
        ConfigError: no request met two boundaries.
    """
    courses = courses_of(observed)
    if all(len(course.points) < 2 for course in courses.values()):
        raise ConfigError(
            "no request was measured twice, so no change can be seen: ask for more --new-tokens"
        )
    positive = share_of_positive(courses, seed)
    return {
        "measured_by": observed.contender.settings,
        "mass": observed.mass,
        "measured": observed.provenance.date,
        "boundaries": sum(len(course.points) for course in courses.values()),
        "positive_deltas": {**asdict(positive), "resolved_from_half": positive.resolves(0.5)},
        "autocorrelation": {
            name: correlation(following(courses, SIGNALS[name]), seed)
            for name in ("delta", "D_p(short)")
        },
        "spans": [str(span) for span in SPANS],
        "signals": {
            name: {str(span): correlation(changes(courses, of, span), seed) for span in SPANS}
            for name, of in SIGNALS.items()
        },
        "deltas": {
            str(span): [
                [pair.signal, pair.later] for pair in changes(courses, SIGNALS["delta"], span)
            ]
            for span in SPANS
        },
    }


def table(report: Mapping[str, Any]) -> Table:
    """A row for each signal, a column for each span."""
    shown = Table(
        title="Signal at a boundary and change of D_p(short), from one boundary to another "
        f"(p = {report['mass']:g}): Spearman's rho",
        title_justify="left",
        caption=_facts(report),
        caption_justify="left",
    )
    shown.add_column("signal")
    for span in report["spans"]:
        shown.add_column(span, justify="right")
    for name, row in report["signals"].items():
        shown.add_row(name, *(show(row[span]["rho"]) for span in report["spans"]))
    return shown


def _facts(report: Mapping[str, Any]) -> str:
    positive = report["positive_deltas"]
    estimate = Estimate(positive["value"], positive["low"], positive["high"])
    half = "" if positive["resolved_from_half"] else f", {NOT_RESOLVED} from half"
    return "\n".join(
        [
            f"{report['boundaries']} boundaries; delta is positive at {estimate.show('.0%')}{half}",
            *(
                f"{name} with itself at the next boundary: {show(found['rho'])}"
                for name, found in report["autocorrelation"].items()
            ),
            "A change from boundary 0 shares its noise with delta and D_p(short) there, which "
            "pulls rho below zero; one from boundary 1 does not.",
        ]
    )


def figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """Every signal's correlation with its interval, and the points behind delta's."""
    with style(theme):
        drawn = Figure(figsize=(11, 4.6), layout="constrained")
        rows, near, far = drawn.subplots(1, 3, width_ratios=(5, 3, 3))
        _draw_intervals(rows, report, theme)
        spans = report["spans"]
        colours = colours_by_name(spans)
        for axes, span in ((near, spans[0]), (far, spans[-1])):
            points = report["deltas"][span]
            axes.axhline(0, color=theme.muted, linewidth=0.8)
            axes.axvline(0, color=theme.muted, linewidth=0.8)
            axes.scatter(
                [delta for delta, _ in points],
                [change for _, change in points],
                s=11,
                alpha=0.7,
                color=colours[span],
            )
            said = show(report["signals"]["delta"][span]["rho"])
            axes.set_title(f"delta, boundary {span}\nrho {said}", loc="left", size="small")
            axes.set_xlabel("delta, tokens")
        near.set_ylabel("change of D_p(short), tokens")
        handles, labels = rows.get_legend_handles_labels()
        drawn.legend(
            handles,
            [f"change from boundary {label}" for label in labels],
            loc="outside lower center",
            ncols=len(labels) or 1,
        )
        drawn.suptitle(
            "Does the signal tell how demand will change?", x=0.01, ha="left", weight="bold"
        )
    return drawn


def _draw_intervals(axes: Axes, report: Mapping[str, Any], theme: Theme) -> None:
    signals = list(report["signals"])
    colours = colours_by_name(report["spans"])
    axes.axvline(0, color=theme.text, linewidth=0.8)
    for index, (span, colour) in enumerate(colours.items()):
        shift = (index - (len(colours) - 1) / 2) * 0.17
        known = [
            (-place - shift, report["signals"][name][span]["rho"])
            for place, name in enumerate(signals)
            if report["signals"][name][span]["rho"] is not None
        ]
        if known:
            heights, found = zip(*known, strict=True)
            axes.hlines(
                heights,
                [each["low"] for each in found],
                [each["high"] for each in found],
                color=colour,
                linewidth=1.4,
            )
            axes.scatter([each["value"] for each in found], heights, s=18, color=colour, label=span)
    axes.set_yticks([-place for place in range(len(signals))], signals)
    axes.set_xlim(-1, 1)
    axes.set_xlabel("Spearman's rho with the change of D_p(short), 95%")
    axes.grid(axis="x")
