"""Throughput by pool size and request rate, latency by rate, and where compression pays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from growpage.bench.look import LIGHT, Theme, colours_by_name, style, to_png
from growpage.bench.throughput.by_length import BIN_TOKENS
from growpage.bench.throughput.crossover import Crossover
from growpage.bench.throughput.load import OpenLoop
from growpage.bench.throughput.summary import Comparison, Summary, crossovers

BASELINE_COLOUR = "#59636e"

LATENCIES = (("ttft", "time to first token"), ("tpot", "time per output token"))


def draw(comparisons: Sequence[Comparison]) -> dict[str, bytes]:
    """Every figure for which enough was measured, as PNG by file name."""
    found: dict[str, bytes] = {}
    for load, at_load in _groups(comparisons, lambda each: str(each.setting.load)):
        if len(at_load) > 1:
            found[f"pools-{_slug(load)}.png"] = to_png(pools_figure(at_load))
        for each in at_load:
            if any(summary.time_by_length for summary in each.summaries.values()):
                name = f"lengths-{_slug(load)}-pool-{_slug(each.setting.pool)}.png"
                found[name] = to_png(lengths_figure(each))
    for pool, at_pool in _groups(comparisons, lambda each: each.setting.pool):
        rates = [each for each in at_pool if isinstance(each.setting.load, OpenLoop)]
        if len(rates) > 1:
            found[f"rates-pool-{_slug(pool)}.png"] = to_png(rates_figure(rates))
    return found


def pools_figure(comparisons: Sequence[Comparison], theme: Theme = LIGHT) -> Figure:
    """Throughput against the pool's size, and the ratio to the baseline with its crossover.

    Args:
        comparisons: at one load, each with another pool.
        theme: colours.
    """
    with style(theme):
        figure = Figure(figsize=(9.2, 4.2), layout="constrained")
        speed, ratio = figure.subplots(1, 2)
        shares = [100 * each.setting.pool_share for each in comparisons]
        found = crossovers(comparisons)
        for name, colour in _colours(comparisons).items():
            speeds = [each.summaries[name].mean_tokens_per_s for each in comparisons]
            _line(speed, shares, speeds, colour, name)
            if name in found:
                _draw_ratio(ratio, comparisons, name, found[name], colour)
        speed.set_ylim(0)
        speed.set_ylabel("output tokens/s")
        ratio.axhline(1, color=theme.text, linestyle=(0, (4, 3)), linewidth=1)
        ratio.set_ylabel(f"tokens/s, ratio to {comparisons[0].baseline}")
        for axes in (speed, ratio):
            axes.set_xlabel("pool, % of what the load needs")
            axes.grid(axis="y")
        _title(figure, f"Throughput by pool: {comparisons[0].setting.load}")
    return figure


def rates_figure(comparisons: Sequence[Comparison], theme: Theme = LIGHT) -> Figure:
    """Throughput and latency against the rate of requests.

    Args:
        comparisons: at one pool, each with another rate.
        theme: colours.
    """
    with style(theme):
        figure = Figure(figsize=(12.4, 4.2), layout="constrained")
        speed, *waits = figure.subplots(1, 1 + len(LATENCIES))
        loads = [each.setting.load for each in comparisons]
        rates = [load.rate for load in loads if isinstance(load, OpenLoop)]
        for name, colour in _colours(comparisons).items():
            summaries = [each.summaries[name] for each in comparisons]
            _line(speed, rates, [each.mean_tokens_per_s for each in summaries], colour, name)
            for axes, (metric, _) in zip(waits, LATENCIES, strict=True):
                _line(axes, rates, _ranks(summaries, metric, 50), colour, None)
                _line(axes, rates, _ranks(summaries, metric, 99), colour, None, dashed=True)
        speed.set_ylim(0)
        speed.set_ylabel("output tokens/s")
        for axes, (_, label) in zip(waits, LATENCIES, strict=True):
            axes.set_yscale("log")
            axes.set_ylabel(f"{label}, s (p50; dashed: p99)")
        for axes in (speed, *waits):
            axes.set_xlabel("requests/s")
            axes.grid(axis="y")
        pool = comparisons[0].setting
        _title(figure, f"By rate, a pool of {pool.pool_pages} pages ({pool.pool_share:.0%})")
    return figure


def lengths_figure(comparison: Comparison, theme: Theme = LIGHT) -> Figure:
    """Time per token against a request's logical length.

    Args:
        comparison: of long answers.
        theme: colours.
    """
    with style(theme):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, colour in _colours([comparison]).items():
            times = comparison.summaries[name].time_by_length
            middles = [length + BIN_TOKENS / 2 for length in times]
            _line(axes, middles, [1000 * each for each in times.values()], colour, name)
        axes.set_ylim(0)
        axes.set_xlabel("logical length, tokens")
        axes.set_ylabel("time per token, ms (median)")
        axes.grid(axis="y")
        _title(figure, f"By length: {comparison.setting.load}")
    return figure


def _draw_ratio(
    axes: Axes, comparisons: Sequence[Comparison], name: str, crossover: Crossover, colour: str
) -> None:
    """A contender's ratio with its interval, and a mark where it falls to 1."""
    shares = [100 * each.setting.pool_share for each in comparisons]
    ratios = [each.ratio(name) for each in comparisons]
    known = [ratio for ratio in ratios if ratio is not None]
    _line(axes, shares, [ratio.value for ratio in known], colour, None)
    for share, ratio in zip(shares, known, strict=True):
        axes.plot((share, share), (ratio.low, ratio.high), color=colour, linewidth=1)
    if crossover.at is not None:
        at = 100 * crossover.at
        axes.plot([at], [1], marker="o", color=colour)
        axes.annotate(f"{at:.0f}%", (at, 1), xytext=(4, 5), textcoords="offset points")


def _line(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[float],
    colour: str,
    label: str | None,
    *,
    dashed: bool = False,
) -> None:
    points = sorted(zip(places, values, strict=True))
    axes.plot(
        [place for place, _ in points],
        [value for _, value in points],
        color=colour,
        label=label,
        marker="." if not dashed else None,
        linestyle=(0, (4, 2)) if dashed else "-",
    )


def _ranks(summaries: Sequence[Summary], metric: str, rank: int) -> list[float]:
    """A percentile of a latency at each place; none is drawn where no request was answered."""
    return [
        each.latencies[metric].percentiles[rank] if metric in each.latencies else float("nan")
        for each in summaries
    ]


def _colours(comparisons: Sequence[Comparison]) -> Mapping[str, str]:
    names, baseline = comparisons[0].summaries, comparisons[0].baseline
    colours = colours_by_name(name for name in names if name != baseline)
    return {name: colours.get(name, BASELINE_COLOUR) for name in names}


def _groups(
    comparisons: Sequence[Comparison], key: Callable[[Comparison], str]
) -> Iterator[tuple[str, list[Comparison]]]:
    for value in dict.fromkeys(map(key, comparisons)):
        yield value, [each for each in comparisons if key(each) == value]


def _slug(text: str) -> str:
    return re.sub(r"[^\w.%=-]+", "-", text)


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", weight="bold")
    figure.legend(loc="outside upper right", ncols=4)
