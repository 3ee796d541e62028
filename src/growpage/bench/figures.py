"""The demo's figures: pages held by each request over time, and the pool's occupancy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from growpage.bench.look import LIGHT, Theme, style
from growpage.bench.results import RunResult
from growpage.bench.workload import Family

FAMILY_NAMES: dict[Family, str] = {
    "short": "short answers",
    "list": "long lists",
    "recall": "recall at the end",
}
FAMILY_COLOURS: dict[Family, str] = {"short": "#009E73", "list": "#56B4E9", "recall": "#E69F00"}

LANE_FILL = 0.94
"""Height of the fullest lane, of the distance between two."""
FAMILY_GAP = 1.0
"""Space between two families, in lanes."""


def pages_figure(
    results: Sequence[RunResult], families: Mapping[str, Family], theme: Theme = LIGHT
) -> Figure:
    """Pages held by each request over time: one panel a policy, one lane a request.

    Args:
        results: the policies, in order; they share both axes and the height of a page.
        families: each request's family, in the order of submission.
        theme: colours.
    """
    with style(theme):
        figure = Figure(figsize=(max(6.8, 0.9 + 3.1 * len(results)), 4.8), layout="constrained")
        panels = figure.subplots(1, len(results), sharex=True, sharey=True, squeeze=False)[0]
        peak = _peak(results)
        for panel, result in zip(panels, results, strict=True):
            _draw_lanes(panel, result, families, peak, theme)
        panels[0].set_xlim(0, 1.02 * max(result.wall_s for result in results))
        figure.suptitle("Pages held by each request, over time", x=0.01, ha="left", weight="bold")
        figure.supxlabel("seconds since the first step", color=theme.muted, size="medium")
        _explain_lanes(figure, results, peak, theme)
    return figure


def pages_panel(
    result: RunResult,
    results: Sequence[RunResult],
    families: Mapping[str, Family],
    theme: Theme = LIGHT,
) -> Figure:
    """One policy's panel of :func:`pages_figure` alone, on the scale of all ``results``."""
    with style(theme):
        figure = Figure(figsize=(4.2, 3.9), layout="constrained")
        panel = figure.subplots()
        _draw_lanes(panel, result, families, _peak(results), theme)
        panel.set_xlim(0, 1.02 * max(each.wall_s for each in results))
        panel.set_xlabel("seconds since the first step", color=theme.muted)
    return figure


def pool_figure(
    results: Sequence[RunResult], theme: Theme = LIGHT, *, width: float = 7.2
) -> Figure:
    """Pool occupancy over time, all policies on one axis, and the requests that share it.

    Args:
        results: the policies, in order; the smallest pool is drawn as the limit.
        theme: colours.
        width: of the figure, in inches.
    """
    with style(theme):
        figure = Figure(figsize=(width, 4.6), layout="constrained")
        pool, residents = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        limit = min(result.pool_pages for result in results)
        for result in results:
            colour = theme.lines.get(result.policy, theme.text)
            used = _steps(result, result.timeline.pages_used)
            pool.step(*used, where="post", color=colour, label=result.policy)
            residents.step(*_steps(result, _residents(result)), where="post", color=colour)
        pool.axhline(limit, color=theme.text, linestyle=(0, (4, 3)), linewidth=1)
        pool.annotate(
            f"the pool: {limit} pages",
            (1, limit),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
        )
        pool.set_ylim(0, 1.14 * max(limit, *(max(each.timeline.pages_used) for each in results)))
        pool.set_ylabel("pages in use")
        residents.set_ylim(0)
        residents.set_ylabel("requests with pages")
        residents.set_xlabel("seconds since the first step")
        residents.set_xlim(0, 1.02 * max(result.wall_s for result in results))
        for axes in (pool, residents):
            axes.grid(axis="y")
        figure.suptitle("Pool occupancy over time", x=0.01, ha="left", weight="bold")
        figure.legend(loc="outside upper right", ncols=len(results))
    return figure


def _peak(results: Sequence[RunResult]) -> int:
    return max(result.peak_pages for result in results)


def _draw_lanes(
    axes: Axes, result: RunResult, families: Mapping[str, Family], peak: int, theme: Theme
) -> None:
    """One lane a request, as high as the pages it holds; families below each other."""
    lanes = _lanes(families)
    for request, base in lanes.items():
        seconds, pages = _steps(result, result.timeline.pages[request])
        heights = [base + LANE_FILL * held / peak for held in pages]
        colour = FAMILY_COLOURS[families[request]]
        axes.fill_between(seconds, base, heights, step="post", color=colour, linewidth=0)
        axes.axhline(base, color=theme.grid, linewidth=0.5, zorder=0)
    lost = [event for event in result.preempted if event.request in lanes]
    axes.plot(
        [event.seconds for event in lost],
        [lanes[event.request] + 0.35 for event in lost],
        linestyle="none",
        marker="x",
        markersize=3.5,
        markeredgewidth=1,
        color=theme.alert,
    )
    axes.axvline(result.wall_s, color=theme.muted, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.annotate(
        f"{result.wall_s:.0f} s",
        (result.wall_s, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3, -2),
        textcoords="offset points",
        ha="right",
        va="top",
        size="small",
        color=theme.muted,
    )
    axes.set_title(result.policy, loc="left", weight="bold")
    axes.set_title(
        f"{result.tokens_per_s:.0f} tokens/s, {result.preemptions} preemptions",
        loc="right",
        size="small",
        color=theme.muted,
    )
    axes.set_ylim(min(lanes.values()) - 0.3, max(lanes.values()) + 1.2)
    middles = _middles(lanes, families)
    axes.set_yticks(
        list(middles.values()),
        [FAMILY_NAMES[family] for family in middles],
        rotation=90,
        va="center",
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _explain_lanes(figure: Figure, results: Sequence[RunResult], peak: int, theme: Theme) -> None:
    note = f"height of a lane: pages held, {peak} at most"
    if any(result.preempted for result in results):
        note += "; cross: preempted"
    figure.text(0.995, 0.985, note, ha="right", va="top", color=theme.muted, size="small")


def _steps(result: RunResult, values: Sequence[int]) -> tuple[list[float], list[int]]:
    """A timeline's points where its value changes, and zero at the end of the run."""
    seconds, kept = [0.0], [0]
    for second, value in zip(result.timeline.seconds, values, strict=True):
        if value != kept[-1]:
            seconds.append(second)
            kept.append(value)
    return [*seconds, result.wall_s], [*kept, 0]


def _residents(result: RunResult) -> list[int]:
    """Requests that hold pages, at each sample."""
    return [sum(map(bool, held)) for held in zip(*result.timeline.pages.values(), strict=True)]


def _lanes(families: Mapping[str, Family]) -> dict[str, float]:
    """The base line of each request, in lanes from the bottom: the first family on top."""
    lanes: dict[str, float] = {}
    top = 0.0
    for family in FAMILY_COLOURS:
        members = [request for request, its in families.items() if its == family]
        for request in members:
            top -= 1
            lanes[request] = top
        if members:
            top -= FAMILY_GAP
    return lanes


def _middles(lanes: Mapping[str, float], families: Mapping[str, Family]) -> dict[Family, float]:
    """The middle of each family's lanes."""
    bases: dict[Family, list[float]] = {}
    for request, base in lanes.items():
        bases.setdefault(families[request], []).append(base)
    return {family: (min(each) + max(each) + 1) / 2 for family, each in bases.items()}
