"""Write the reference of growpage's metrics into the documentation, from their catalogue.

python tools/metrics_reference.py      # rewrites the part of docs/monitoring.md between the marks
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from growpage.telemetry.catalogue import METRICS, Kind, Metric

PAGE = Path(__file__).parents[1] / "docs" / "monitoring.md"
BEGIN = "<!-- metrics: made by tools/metrics_reference.py -->\n"
END = "<!-- /metrics -->\n"


def reference() -> Iterator[str]:
    """The lines of the table, in the order of the catalogue."""
    yield "| metric | kind | unit | labels | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for metric in METRICS:
        cells = (f"`{_name(metric)}`", metric.kind, metric.unit, _labels(metric), _meaning(metric))
        yield f"| {' | '.join(cells)} |"


def _name(metric: Metric) -> str:
    """As it is queried; a histogram by the name of its family."""
    return metric.name if metric.kind is Kind.HISTOGRAM else metric.exposed[0]


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels)


def _meaning(metric: Metric) -> str:
    text = metric.help.replace("|", "\\|")
    if metric.buckets:
        text += f" Buckets up to {', '.join(f'{bound:g}' for bound in metric.buckets)}."
    return text


def page(text: str) -> str:
    """The page with the part between the marks made anew.

    Raises:
        ValueError: the page has no such marks.
    """
    table = "".join(f"{line}\n" for line in reference())
    whole, found = re.subn(
        f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", lambda _: table, text, flags=re.DOTALL
    )
    if found != 1:
        raise ValueError(f"{PAGE.name} has {found} parts between {BEGIN!r} and {END!r}, not one")
    return whole


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
