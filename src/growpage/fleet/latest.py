"""The last decision for each target, for whoever asks between two rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from growpage.fleet.controller import Record
from growpage.fleet.decision import Decision


class LatestDecisions:
    """Keeps the last decision for each target, as long as it is recent. Thread-safe."""

    def __init__(self, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: seconds after which a decision is forgotten, and a clock."""
        self._max_age = max_age
        self._clock = clock
        self._lock = threading.Lock()
        self._decisions: dict[tuple[str, str], tuple[float, Decision]] = {}

    def __call__(self, record: Record) -> None:
        """Remember a decision."""
        target = record.decision.target
        with self._lock:
            self._decisions[target.namespace, target.name] = (self._clock(), record.decision)

    def get(self, namespace: str, name: str) -> Decision | None:
        """The decision for a target; None if there is none that is recent."""
        with self._lock:
            found = self._decisions.get((namespace, name))
        if found is None or self._clock() - found[0] > self._max_age:
            return None
        return found[1]
