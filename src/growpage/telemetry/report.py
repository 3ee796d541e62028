"""What an engine tells the server that exports its metrics: plain data, a few times a second.

Counters and histogram values are those since the last report, so that whichever server process gets
it can add them up; gauges are as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

KEY = "growpage"
"""The report's name inside vLLM's own statistics."""


class Report(TypedDict):
    """One report: each list holds metrics by name, the values of their own labels, and figures."""

    counters: Sequence[tuple[str, Sequence[str], float]]
    gauges: Sequence[tuple[str, Sequence[str], float]]
    values: Sequence[tuple[str, Sequence[str], Sequence[float]]]
