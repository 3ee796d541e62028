"""Runs that nobody made, with figures that are known."""

from __future__ import annotations

from collections.abc import Sequence

from growpage.bench.throughput.latency import Trace
from growpage.bench.throughput.load import ClosedLoop, OpenLoop
from growpage.bench.throughput.protocol import EngineFigures, Measurement
from growpage.bench.throughput.summary import Run, Setting


def trace(
    events: Sequence[tuple[float, int]],
    *,
    sent: float = 0.0,
    wanted: int | None = None,
    error: str | None = None,
) -> Trace:
    tokens = sum(each for _, each in events)
    return Trace(
        request="0000",
        prompt_tokens=10,
        wanted_tokens=tokens if wanted is None else wanted,
        sent_s=sent,
        events=list(events),
        error=error,
    )


def run_of(
    contender: str,
    tokens_per_s: float,
    *,
    number: int = 1,
    pool: int = 20,
    load: ClosedLoop | OpenLoop | None = None,
    engine: EngineFigures | None = None,
    tokens: int = 100,
) -> Run:
    """One request of so many tokens, at a steady pace."""
    wall_s = tokens / tokens_per_s
    events = [(wall_s * (index + 1) / tokens, 1) for index in range(tokens)]
    setting = Setting(load or ClosedLoop(clients=8), f"{pool}%", pool, needed_pages=100)
    measurement = Measurement(
        wall_s=wall_s, traces=[trace(events)], engine=engine or EngineFigures()
    )
    return Run(setting, contender, number, pool, measurement, load_average=1.5)
