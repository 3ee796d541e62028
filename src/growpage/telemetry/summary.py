"""The line about each engine that the server logs now and then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from growpage.telemetry.report import Report


class Summary:
    """Adds up reports until the next line."""

    def __init__(self) -> None:
        self._counts: dict[int, defaultdict[str, float]] = {}
        self._gauges: dict[int, dict[str, float]] = {}

    def take(self, engine: int, report: Report) -> None:
        """Add one engine's report."""
        counts = self._counts.setdefault(engine, defaultdict(float))
        for name, _, more in report["counters"]:
            counts[name] += more
        self._gauges.setdefault(engine, {}).update(
            {name: value for name, labels, value in report["gauges"] if not labels}
        )

    def lines(self) -> Iterator[str]:
        """What happened since the last call; nothing of engines that did nothing."""
        for engine, counts in self._counts.items():
            if not any(counts.values()):
                continue
            gauges = self._gauges[engine]
            yield (
                f"Engine {engine:03d}: growpage: KV tokens kept: "
                f"{gauges['growpage_kv_kept_tokens']:.0f} of "
                f"{gauges['growpage_kv_logical_tokens']:.0f} logical, "
                f"page utilization: {gauges['growpage_kv_page_utilization']:.1%}, "
                f"compressions: {counts['growpage_compressions']:.0f}, "
                f"growths: {counts['growpage_growths']:.0f}, "
                f"refused: {counts['growpage_growth_refused']:.0f}, "
                f"evicted: {counts['growpage_evicted_tokens']:.0f} tokens"
            )
            counts.clear()
