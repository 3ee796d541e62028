"""``report.html``: one page that needs nothing else, on a phone or a desk, by day or by night."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from html import escape
from importlib.resources import files
from string import Template

from matplotlib.figure import Figure

from growpage.bench import figures
from growpage.bench.comparison import AGREEMENT_NOTE, METRICS, Comparison
from growpage.bench.figures import FAMILY_COLOURS, FAMILY_NAMES
from growpage.bench.look import DARK, LIGHT, Theme, to_svg

TEMPLATE = "page.html"


def render(comparison: Comparison) -> str:
    """The whole page, figures inlined as data URIs."""
    results, families = comparison.results, comparison.setting.families
    panels = "\n".join(
        _picture(
            partial(figures.pages_panel, result, results, families),
            f"Pages held by each request over time under {result.policy}",
        )
        for result in results
    )
    pool = _picture(
        partial(figures.pool_figure, results, width=5.6),
        "Pages of the pool in use, and requests that hold pages, over time, for each policy",
    )
    template = Template(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
    return template.substitute(
        headline=escape(comparison.headline()),
        table=_table(comparison),
        legend=_legend(comparison),
        panels=panels,
        pool=pool,
        setting=_setting(comparison),
        note=escape(AGREEMENT_NOTE),
    )


def _table(comparison: Comparison) -> str:
    rows = comparison.rows
    head = "".join(f'<th scope="col">{escape(row.result.policy)}</th>' for row in rows)
    body = "\n".join(
        f'<tr><th scope="row">{escape(metric.label)}</th>'
        + "".join(f"<td>{escape(metric.show(row))}</td>" for row in rows)
        + "</tr>"
        for metric in METRICS
    )
    return f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"


def _legend(comparison: Comparison) -> str:
    present = dict.fromkeys(comparison.setting.families.values())
    return "\n".join(
        f'<span><i style="background:{FAMILY_COLOURS[family]}"></i>{FAMILY_NAMES[family]}</span>'
        for family in present
    )


def _setting(comparison: Comparison) -> str:
    setting = comparison.setting
    facts = {
        "Model": setting.model
        if setting.dtype == "auto"
        else f"{setting.model}, in {setting.dtype}",
        "Workload": f"{len(setting.families)} requests submitted at once, greedy, up to "
        f"{setting.max_new_tokens} new tokens each, fewer where the model ends by itself",
        "Pool": f"{setting.pool_pages} pages of {setting.block_size} tokens "
        f"({setting.pool_pages * setting.page_bytes / 2**20:.0f} MiB) = {setting.pool_formula}",
        "Prefix caching": "on" if setting.prefix_caching else "off",
        "Seed": setting.seed,
        "Machine": ", ".join(f"{key} {value}" for key, value in setting.machine.items()),
        "Versions": ", ".join(f"{key} {value}" for key, value in setting.versions.items()),
        "Date": setting.date,
    } | {
        f"Policy {policy}": (
            "vLLM without the plugin"
            if chosen is None
            else ", ".join(f"{key} {value}" for key, value in chosen.items())
        )
        for policy, chosen in setting.settings.items()
    }
    return "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()
    )


def _picture(draw: Callable[[Theme], Figure], description: str) -> str:
    """A figure in both colour schemes; the browser shows the one that fits."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{_inlined(draw(DARK))}">'
        f'<img src="{_inlined(draw(LIGHT))}" alt="{escape(description)}"></picture>'
    )


def _inlined(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(to_svg(figure)).decode()
