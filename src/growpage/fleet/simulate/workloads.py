"""Loads to simulate: generated shapes, and recordings."""

from __future__ import annotations

import csv
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi
from pathlib import Path

from growpage.budget.errors import ConfigError

Rate = Callable[[float], float]
HOUR = 3600.0


@dataclass(frozen=True)
class Workload:
    """Requests over time, and what happens meanwhile.

    Attributes:
        name: for the report.
        seconds: how long it lasts.
        rate: requests a second at a time.
        outages: times, from and to, in which no metrics are to be had.
        update_at: when all replicas begin to be replaced one by one; None if they are not.
    """

    name: str
    seconds: float
    rate: Rate
    outages: tuple[tuple[float, float], ...] = ()
    update_at: float | None = None

    def measured(self, when: float) -> bool:
        """Whether metrics are to be had at a time."""
        return not any(begin <= when < end for begin, end in self.outages)


def diurnal(peak: float) -> Workload:
    """A day in four hours: from a tenth of the peak up and down again."""
    seconds = 4 * HOUR
    return Workload("diurnal", seconds, lambda t: peak * (0.55 - 0.45 * cos(2 * pi * t / seconds)))


def spike(peak: float) -> Workload:
    """A quiet hour and a half, with ten minutes of the peak in its middle."""
    return Workload("spike", 1.5 * HOUR, lambda t: peak if 2400 <= t < 3000 else peak / 6)


def outage(peak: float) -> Workload:
    """Twenty minutes without metrics, in the middle of which the load rises; later it falls."""

    def rate(when: float) -> float:
        if when < 4200:
            return peak * 0.5
        return peak * 0.75 if when < 6600 else peak * 0.15

    return Workload("outage", 2.5 * HOUR, rate, outages=((3600, 4800),))


def rolling(peak: float) -> Workload:
    """A steady load while every replica is replaced, one at a time."""
    return Workload("rolling", 1.5 * HOUR, lambda _: peak * 0.6, update_at=2400)


GENERATED: dict[str, Callable[[float], Workload]] = {
    "diurnal": diurnal,
    "spike": spike,
    "outage": outage,
    "rolling": rolling,
}


def recorded(path: Path) -> Workload:
    """Requests a second over time from a file.

    A CSV has lines of seconds and requests a second. A JSON file is an answer of Prometheus'
    ``/api/v1/query_range``; its series are added up. In between, the last value counts.

    Raises:
        ConfigError: it cannot be read, or is neither.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recording {path}: {error}") from None
    try:
        points = _from_json(text) if path.suffix.lower() == ".json" else _from_csv(text)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{path} is no recording: it must be a CSV of seconds and requests a second, or JSON "
            f"as Prometheus' query_range answers ({error})"
        ) from None
    if len(points) < 2:
        raise ConfigError(f"{path} holds {len(points)} points, but a recording needs 2 at least")
    if any(not isfinite(rate) or rate < 0 for _, rate in points):
        raise ConfigError(f"{path} holds a rate that is negative or no number")
    begin = points[0][0]
    times = [when - begin for when, _ in points]

    def rate(when: float) -> float:
        return points[max(0, bisect_right(times, when) - 1)][1]

    return Workload(path.stem, times[-1], rate)


def _from_csv(text: str) -> Sequence[tuple[float, float]]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if rows and not _is_number(rows[0][0]):  # a header
        rows = rows[1:]
    return sorted((float(row[0]), float(row[1])) for row in rows)


def _from_json(text: str) -> Sequence[tuple[float, float]]:
    body = json.loads(text)
    total: dict[float, float] = {}
    for series in body.get("data", body)["result"]:
        for when, value in series["values"]:
            total[float(when)] = total.get(float(when), 0.0) + float(value)
    return sorted(total.items())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
