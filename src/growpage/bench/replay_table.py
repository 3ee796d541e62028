"""The table of a report on replays, for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

NOT_RESOLVED = "not resolved"


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """One for each load, and one more for each family of requests."""
    for load, contenders in report["loads"].items():
        yield _table(f"{load} load", contenders)
        kinds = dict.fromkeys(kind for each in contenders.values() for kind in each["families"])
        for kind in kinds:
            rows = {name: each["families"][kind] for name, each in contenders.items()}
            yield _table(f"{load} load, {kind}", rows)


def _table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("contender", no_wrap=True)
    for name in ("KL [95%]", "worst", "top-1", "perplexity", "MiB", "pages", "peak", "preempted"):
        table.add_column(name, justify="right", no_wrap=True)
    compared = {
        "ratio_at_equal_memory": "of fixed at equal memory",
        "ratio_to_base": "of the base",
    }
    shown = {
        key: label
        for key, label in compared.items()
        if any(figures[key] is not None for figures in rows.values())
    }
    for label in shown.values():
        table.add_column(label, justify="right", no_wrap=True)
    for name, figures in rows.items():
        kl = figures["kl"]
        table.add_row(
            name,
            f"{kl['value']:.4f} [{kl['low']:.4f}, {kl['high']:.4f}]",
            f"{figures['worst_kl']:.3f}",
            f"{figures['agreement']:.1%}",
            f"{figures['perplexity']:.3f}",
            f"{figures['mean_bytes'] / 2**20:.2f}",
            f"{figures['mean_pages']:.1f}",
            f"{figures['peak_pages']}",
            f"{figures['preemptions']}",
            *(_ratio(figures[key]) for key in shown),
        )
    return table


def _ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    text = f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
    return text if found["resolved"] else f"{text} {NOT_RESOLVED}"
