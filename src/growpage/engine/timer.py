"""How long the phases of a decision take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Collects durations by phase, in seconds."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        yield
        self._seconds[name].append(time.perf_counter() - start)

    def take(self) -> dict[str, list[float]]:
        """All durations since the last call."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken
