"""What a comparison leaves behind: tables, and everything that ``throughput.json`` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from rich.table import Table

from growpage.bench.statistics import Estimate
from growpage.bench.throughput.latency import METRICS, PERCENTILES
from growpage.bench.throughput.protocol import EngineFigures
from growpage.bench.throughput.summary import Comparison, Run, Summary, compare, crossovers

PHASES = ("capture", "measure", "compact", "decide")

_Figure = Callable[[EngineFigures], float | None]


@dataclass(frozen=True)
class Line:
    """One line of the table and one field of the JSON."""

    key: str
    label: str
    value: Callable[[Summary], float | None]
    form: str = ",.0f"

    def show(self, summary: Summary) -> str:
        """The value as text; a dash where it is not known."""
        value = self.value(summary)
        return "-" if value is None else format(value, self.form)


def _of_engine(key: str, label: str, of: _Figure, form: str = ",.0f") -> Line:
    return Line(key, label, lambda summary: summary.figure(of), form)


def _most(key: str, label: str, of: _Figure, form: str = ",.0f") -> Line:
    return Line(key, label, lambda summary: summary.most(of), form)


def _phase(phase: str) -> Line:
    return Line(
        f"{phase}_share", f"time in {phase}", lambda summary: summary.phase_share(phase), ".2%"
    )


LINES = (
    Line("output_tokens_per_s", "output tokens/s", lambda s: s.mean_tokens_per_s, ",.1f"),
    Line("requests_per_s", "requests/s", lambda s: fmean(s.requests_per_s.values()), ".3f"),
    Line("failed", "requests failed", lambda s: len(s.failures)),
    _of_engine("preemptions", "preemptions", lambda e: e.preemptions, ",.1f"),
    _of_engine("recomputed_tokens", "recomputed tokens", lambda e: e.recomputed_tokens),
    _most("peak_resident", "requests resident, most", lambda e: e.peak_resident),
    _of_engine("mean_resident", "requests resident, mean", lambda e: e.mean_resident, ".1f"),
    _of_engine("mean_pages", "pages a request, mean", lambda e: e.mean_pages, ".1f"),
    _most("peak_pages", "pages a request, most", lambda e: e.peak_pages),
    _of_engine("mean_pool_use", "pool in use, mean", lambda e: e.mean_pool_use, ".0%"),
    _most("peak_pool_use", "pool in use, most", lambda e: e.peak_pool_use, ".0%"),
    _of_engine("compressions", "compressions", lambda e: e.compressions),
    _of_engine("evicted_tokens", "evicted tokens", lambda e: e.evicted_tokens),
    _of_engine("steps", "steps", lambda e: e.steps),
    *map(_phase, PHASES),
    Line("load_average", "load average", lambda s: s.load_average, ".1f"),
)


def table(comparison: Comparison) -> Table:
    """One setting: one line a figure, one column a contender; latencies in milliseconds."""
    summaries = list(comparison.summaries.values())
    shown = Table(title=str(comparison.setting), title_justify="left")
    shown.add_column("", no_wrap=True)
    for summary in summaries:
        shown.add_column(summary.contender, justify="right", overflow="fold")

    def add(label: str, show: Callable[[Summary], str]) -> None:
        shown.add_row(label, *map(show, summaries))

    add(
        f"ratio to {comparison.baseline}",
        lambda summary: _show_ratio(comparison.ratio(summary.contender), len(summary.runs)),
    )
    add(
        f"TPOT p99, ratio to {comparison.baseline}",
        lambda summary: _show_ratio(
            comparison.tpot_p99_ratio(summary.contender),
            len(summary.runs),
            absent="1" if summary.contender == comparison.baseline else "-",
        ),
    )
    for line in LINES[:3]:
        add(line.label, line.show)
    for metric in METRICS:
        for rank in ("mean", *(f"p{percent}" for percent in PERCENTILES)):
            add(f"{metric.upper()} {rank}, ms", partial(_show_latency, metric=metric, rank=rank))
    for line in LINES[3:]:
        if any(line.value(summary) is not None for summary in summaries):
            add(line.label, line.show)
    return shown


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """One setting, for JSON."""
    setting = comparison.setting
    return {
        "load": setting.load.model_dump(),
        "pool": setting.pool,
        "pool_pages": setting.pool_pages,
        "needed_pages": setting.needed_pages,
        "baseline": comparison.baseline,
        "contenders": {
            name: {
                "ratio": _ratio_to_dict(comparison.ratio(name)),
                "tpot_p99_ratio": _ratio_to_dict(comparison.tpot_p99_ratio(name)),
                "ms_per_token_by_length": {
                    length: round(1000 * seconds, 3)
                    for length, seconds in summary.time_by_length.items()
                },
                **{line.key: _rounded(line.value(summary)) for line in LINES},
                "latency_ms": {
                    metric: each.milliseconds() for metric, each in summary.latencies.items()
                },
                "pool_pages": summary.runs[0].pool_pages,
                "output_tokens_per_s_by_round": [
                    _rounded(value) for value in summary.output_tokens_per_s.values()
                ],
                "seconds_by_phase_by_round": [
                    run.measurement.engine.seconds for run in summary.runs
                ],
                "failures": list(summary.failures),
            }
            for name, summary in comparison.summaries.items()
        },
    }


def run_to_dict(run: Run) -> dict[str, Any]:
    """One run with every token's time, for a line of JSON."""
    return {
        "contender": run.contender,
        "round": run.round,
        "load": run.setting.load.model_dump(),
        "pool": run.setting.pool,
        "pool_pages": run.pool_pages,
        "load_average": run.load_average,
        "measurement": run.measurement.model_dump(),
    }


def progress(run: Run) -> str:
    """One run in a sentence."""
    (summary,) = compare([run], run.contender)[0].summaries.values()
    return (
        f"{run.setting.load}, pool {run.setting.pool}, round {run.round}, {run.contender}: "
        f"{summary.mean_tokens_per_s:.1f} output tokens/s in {run.measurement.wall_s:.0f} s"
    )


def headlines(comparisons: Sequence[Comparison]) -> list[str]:
    """The outcome at each setting in one sentence, and each crossover."""
    found = []
    for comparison in comparisons:
        each = ", ".join(
            f"{name} {_show_ratio(comparison.ratio(name), len(summary.runs))}"
            for name, summary in comparison.summaries.items()
            if name != comparison.baseline
        )
        if each:
            found.append(
                f"{comparison.setting}: tokens/s relative to {comparison.baseline}: {each}."
            )
    for load, at_load in _several_pools(comparisons):
        found += [
            f"{load}: {name} against {at_load[0].baseline}: {crossover.text}."
            for name, crossover in crossovers(at_load).items()
        ]
    return found


def crossovers_to_dict(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Every crossover, for JSON; none where one pool alone was measured."""
    return [
        {"load": load, "contender": name, "pool_share": crossover.at, "text": crossover.text}
        for load, at_load in _several_pools(comparisons)
        for name, crossover in crossovers(at_load).items()
    ]


def _several_pools(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    for load in dict.fromkeys(str(each.setting.load) for each in comparisons):
        here = [each for each in comparisons if str(each.setting.load) == load]
        if len(here) > 1:
            yield load, here


def _show_ratio(ratio: Estimate | None, rounds: int, absent: str = "1") -> str:
    if ratio is None:
        return absent
    return ratio.show() if rounds > 1 else f"{ratio.value:.2f}"


def _show_latency(summary: Summary, metric: str, rank: str) -> str:
    found = summary.latencies.get(metric)
    return "-" if found is None else f"{found.milliseconds()[rank]:,.1f}"


def _ratio_to_dict(ratio: Estimate | None) -> dict[str, float] | None:
    if ratio is None:
        return None
    return {
        "value": round(ratio.value, 4),
        "low": round(ratio.low, 4),
        "high": round(ratio.high, 4),
    }


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value
