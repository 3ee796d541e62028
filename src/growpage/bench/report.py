"""What the demo leaves behind: the table, ``report.json``, the figures and ``report.html``."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from growpage.bench import figures, page
from growpage.bench.comparison import METRICS, Comparison
from growpage.bench.look import to_png

REPORT_JSON = "report.json"
REPORT_HTML = "report.html"
PAGES_PNG = "pages-by-request.png"
POOL_PNG = "pool-occupancy.png"

AGREEMENT_HINT = f"Even plain vLLM would not agree with itself at 100%: {REPORT_HTML} says why."


def table(comparison: Comparison) -> Table:
    """The table for a terminal: one line a metric, one column a policy."""
    rows = comparison.rows
    caption = f"{comparison.headline()} {AGREEMENT_HINT}"
    shown = Table(caption=caption, caption_justify="left")
    shown.add_column("")
    for row in rows:
        shown.add_column(row.result.policy, justify="right")
    for metric in METRICS:
        shown.add_row(metric.label, *(metric.show(row) for row in rows))
    return shown


def write(comparison: Comparison, out: Path) -> list[Path]:
    """Write the report into a folder that exists.

    Returns:
        The files: JSON, figures, page.
    """
    results, families = comparison.results, comparison.setting.families
    content = {
        REPORT_JSON: json.dumps(comparison.to_dict(), indent=2).encode(),
        PAGES_PNG: to_png(figures.pages_figure(results, families)),
        POOL_PNG: to_png(figures.pool_figure(results)),
        REPORT_HTML: page.render(comparison).encode(),
    }
    for name, data in content.items():
        (out / name).write_bytes(data)
    return [out / name for name in content]
