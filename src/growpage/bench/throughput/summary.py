"""The runs side by side: each contender's figures over all rounds, and its ratio to the baseline.

A ratio is paired: in each round all contenders serve the same load one after the other, so what
slows down the whole round cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from growpage.bench import statistics
from growpage.bench.statistics import Estimate
from growpage.bench.throughput.by_length import time_by_length
from growpage.bench.throughput.crossover import Crossover, find_crossover
from growpage.bench.throughput.latency import Distribution, latencies
from growpage.bench.throughput.load import ClosedLoop, OpenLoop
from growpage.bench.throughput.protocol import EngineFigures, Measurement


@dataclass(frozen=True)
class Setting:
    """One place of a sweep, at which all contenders are compared."""

    load: ClosedLoop | OpenLoop
    pool: str
    """As it was asked for: pages, or a share of what the load needs."""
    pool_pages: int
    needed_pages: int
    """With which the load can never be short."""

    @property
    def pool_share(self) -> float:
        """The pool over what the load needs."""
        return self.pool_pages / self.needed_pages

    def __str__(self) -> str:
        return f"{self.load}, a pool of {self.pool_pages} pages ({self.pool_share:.0%} of the need)"


@dataclass(frozen=True)
class Run:
    """One contender's run in one round."""

    setting: Setting
    contender: str
    round: int
    pool_pages: int
    """Its own pool's, which may be another than the setting's."""
    measurement: Measurement
    load_average: float
    """Of this machine over its last minute: what else it was doing."""


@dataclass(frozen=True)
class Summary:
    """One contender at one setting, over all rounds."""

    setting: Setting
    contender: str
    runs: Sequence[Run]

    @cached_property
    def output_tokens_per_s(self) -> Mapping[str, float]:
        """By round: tokens of complete answers over the wall time."""
        return self._by_round(
            lambda run: sum(each.tokens for each in run.traces if each.failure is None) / run.wall_s
        )

    @property
    def mean_tokens_per_s(self) -> float:
        """Output tokens/s, the mean over rounds."""
        return fmean(self.output_tokens_per_s.values())

    @cached_property
    def requests_per_s(self) -> Mapping[str, float]:
        """By round: complete answers over the wall time."""
        return self._by_round(
            lambda run: sum(each.failure is None for each in run.traces) / run.wall_s
        )

    @cached_property
    def latencies(self) -> Mapping[str, Distribution]:
        """Of all rounds' requests together."""
        return latencies(trace for run in self.runs for trace in run.measurement.traces)

    @cached_property
    def tpot_p99(self) -> Mapping[str, float]:
        """By round: the 99th percentile of the time per output token, in seconds."""
        found = {run.round: latencies(run.measurement.traces).get("tpot") for run in self.runs}
        return {str(number): each.percentiles[99] for number, each in found.items() if each}

    @cached_property
    def time_by_length(self) -> Mapping[int, float]:
        """Seconds per token by logical length, all rounds together; nothing if all are short."""
        return time_by_length(trace for run in self.runs for trace in run.measurement.traces)

    @cached_property
    def failures(self) -> Sequence[str]:
        """Requests that failed, and why."""
        return [
            f"request {trace.request} in round {run.round}: {trace.failure}"
            for run in self.runs
            for trace in run.measurement.traces
            if trace.failure is not None
        ]

    @property
    def load_average(self) -> float:
        """Of this machine at the end of each run, the mean over rounds."""
        return fmean(run.load_average for run in self.runs)

    def figure(self, of: Callable[[EngineFigures], float | None]) -> float | None:
        """The mean over rounds of what the engine says; none where it does not."""
        values = [of(run.measurement.engine) for run in self.runs]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def most(self, of: Callable[[EngineFigures], float | None]) -> float | None:
        """The largest over rounds of what the engine says; none where it does not."""
        values = [of(run.measurement.engine) for run in self.runs]
        return max((value for value in values if value is not None), default=None)

    def phase_share(self, phase: str) -> float | None:
        """Time in a phase of growpage's work, of the wall time; none where nothing is known."""
        spent = [run.measurement.engine.seconds.get(phase) for run in self.runs]
        known = [seconds for seconds in spent if seconds is not None]
        wall = sum(run.measurement.wall_s for run in self.runs)
        return sum(known) / wall if known else None

    def ratio(self, baseline: Summary) -> Estimate:
        """Tokens/s over the baseline's, paired by round."""
        return statistics.ratio(self.output_tokens_per_s, baseline.output_tokens_per_s)

    def tpot_p99_ratio(self, baseline: Summary) -> Estimate | None:
        """As :meth:`ratio`, of :attr:`tpot_p99`; none where no answer has a second token."""
        ours, theirs = self.tpot_p99, baseline.tpot_p99
        return statistics.ratio(ours, theirs) if ours and ours.keys() == theirs.keys() else None

    def _by_round(self, of: Callable[[Measurement], float]) -> Mapping[str, float]:
        return {str(run.round): of(run.measurement) for run in self.runs}


@dataclass(frozen=True)
class Comparison:
    """All contenders at one setting."""

    setting: Setting
    summaries: Mapping[str, Summary]
    """By contender, in the order of the command line."""
    baseline: str
    """To which ratios refer."""

    def ratio(self, contender: str) -> Estimate | None:
        """A contender's tokens/s over the baseline's; none for the baseline itself."""
        if contender == self.baseline:
            return None
        return self.summaries[contender].ratio(self.summaries[self.baseline])

    def tpot_p99_ratio(self, contender: str) -> Estimate | None:
        """Likewise, of the 99th percentile of the time per output token."""
        if contender == self.baseline:
            return None
        return self.summaries[contender].tpot_p99_ratio(self.summaries[self.baseline])


def compare(runs: Sequence[Run], baseline: str) -> list[Comparison]:
    """Runs by setting and contender, in the order in which they first appear."""
    found = []
    for setting in dict.fromkeys(run.setting for run in runs):
        here = [run for run in runs if run.setting == setting]
        summaries = {
            name: Summary(setting, name, [run for run in here if run.contender == name])
            for name in dict.fromkeys(run.contender for run in here)
        }
        found.append(Comparison(setting, summaries, baseline))
    return found


def crossovers(comparisons: Sequence[Comparison]) -> dict[str, Crossover]:
    """Of each contender but the baseline, at one load.

    Args:
        comparisons: each with another pool.
    """
    found = {}
    for name in comparisons[0].summaries:
        ratios = [each.ratio(name) for each in comparisons]
        shares = [each.setting.pool_share for each in comparisons]
        values = [ratio.value for ratio in ratios if ratio is not None]
        if values:
            found[name] = find_crossover(shares, values)
    return found
