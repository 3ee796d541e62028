"""Values to be put into histograms, until they are sent to the server that exports them."""

from __future__ import annotations

from collections import defaultdict

MOST = 4096
"""Values of one histogram that are kept between two reports, a fraction of a second apart."""


class Observations:
    """Collects values by metric and labels.

    Args:
        wanted: whether anybody takes them.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._values: defaultdict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add one value to the histogram ``name``, for these values of its own labels."""
        if not self._wanted:
            return
        values = self._values[name, labels]
        if len(values) < MOST:
            values.append(value)

    def drain(self) -> list[tuple[str, tuple[str, ...], list[float]]]:
        """Everything since the last call."""
        taken = [(name, labels, values) for (name, labels), values in self._values.items()]
        self._values.clear()
        return taken
