"""Quality against throughput, contender by contender (the paper's Figure 1b).

Joins the reports of two benchmarks by the names of their contenders: ``growpage bench quality
replay`` or ``answers``, and ``growpage bench throughput``. Neither is run here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from growpage.bench.look import LIGHT, Theme, colours_by_name, marks_by_name, style
from growpage.bench.statistics import Estimate
from growpage.budget.errors import ConfigError

PLAIN, FULL = "plain", "full"
"""vLLM without the plugin, and with it and full KV: they say the same tokens, so that where the
quality of plain was not measured, it is that of full."""

LEAST_KL = 1e-4
"""KL at and below which the figure draws a contender at the edge."""


@dataclass(frozen=True)
class Quality:
    """A report on quality."""

    model: str
    measure: str
    """What is measured: a KL, where less is better, or the share of right answers."""
    contenders: Mapping[str, Mapping[str, Any]]
    """Their settings, by name."""
    figures: Mapping[str, Estimate]

    @property
    def is_kl(self) -> bool:
        """Whether less is better."""
        return self.measure.startswith("KL")


def read_quality(file: Path, load: str) -> Quality:
    """The JSON of ``growpage bench quality replay`` or ``answers``.

    Args:
        file: the report.
        load: under which replays are taken.

    Raises:
        ConfigError: it is no such report, or has no replays under this load.
    """
    report = _read(file)
    try:
        model = report["setup"]["model"]
        if "loads" in report:
            if load not in report["loads"]:
                raise ConfigError(
                    f"{file} has no replays under {load} load; it has {', '.join(report['loads'])}"
                )
            rows = report["loads"][load]
            return Quality(
                model,
                f"KL to full KV, nats a token, {load} load",
                {name: row["contender"] for name, row in rows.items()},
                {name: _estimate(row["kl"]) for name, row in rows.items()},
            )
        rows = report["figures"]["all"]
        return Quality(
            model,
            "right answers",
            {each["name"]: each for each in report["contenders"]},
            {name: _estimate(row["accuracy"]) for name, row in rows.items()},
        )
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{file} is no report of growpage bench quality replay or answers"
        ) from None


def read_throughput(file: Path) -> dict[str, Any]:
    """The JSON of ``growpage bench throughput``.

    Of each of its ``settings``, ``baseline`` and ``contenders`` are needed, and of each contender
    ``output_tokens_per_s`` and ``ratio``, tokens/s over the baseline's (null for the baseline).

    Raises:
        ConfigError: it is no such report.
    """
    report = _read(file)
    try:
        for setting in report["settings"]:
            _ = setting["baseline"], setting["load"], setting["pool"]
            for row in setting["contenders"].values():
                _ = row["output_tokens_per_s"], row["ratio"] and _estimate(row["ratio"])
        _ = report["model"], [each["name"] for each in report["contenders"]]
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{file} is no report of growpage bench throughput") from None
    return report


def _read(file: Path) -> dict[str, Any]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise ConfigError(f"{file} is no JSON report")
    return report


def _estimate(row: Mapping[str, float]) -> Estimate:
    return Estimate(row["value"], row["low"], row["high"])


def provenance(file: Path) -> dict[str, Any]:
    """How and when a report's figures were measured, as far as it says."""
    report = _read(file)
    return {
        key: report[key]
        for key in ("command", "date", "questions", "sources", "workload", "machine", "versions")
        if key in report
    }


def join(quality: Quality, throughput: Mapping[str, Any]) -> dict[str, Any]:
    """The report, ready for JSON: one list of points for each setting of the throughput.

    Raises:
        ConfigError: the two are of other models, no contender is in both, or one of them is another
            in the one than in the other.
    """
    if quality.model != throughput["model"]:
        raise ConfigError(
            f"quality was measured on {quality.model} and throughput on {throughput['model']}: "
            "give two reports on the same model"
        )
    fast = {each["name"]: each for each in throughput["contenders"]}
    partners = {name: _partner(name, quality) for name in fast}
    shared = {name: partner for name, partner in partners.items() if partner is not None}
    if not shared:
        raise ConfigError(
            f"no contender is in both reports: quality has {', '.join(quality.figures)}, and "
            f"throughput {', '.join(fast)}"
        )
    for name, partner in shared.items():
        _check_same(name, quality.contenders[partner], fast[name], partner)
    return {
        "model": quality.model,
        "measure": quality.measure,
        "less_is_better": quality.is_kl,
        "only_in_quality": [name for name in quality.figures if name not in shared.values()],
        "only_in_throughput": [name for name in fast if name not in shared],
        "settings": [
            {
                "load": setting["load"],
                "pool": setting["pool"],
                "baseline": setting["baseline"],
                "points": {
                    name: {
                        "quality": asdict(quality.figures[shared[name]]),
                        "quality_of": shared[name],
                        "tokens_per_s": row["output_tokens_per_s"],
                        # The baseline's own.
                        "ratio": row["ratio"] or {"value": 1.0, "low": 1.0, "high": 1.0},
                    }
                    for name, row in setting["contenders"].items()
                    if name in shared
                },
            }
            for setting in throughput["settings"]
        ],
    }


def _partner(name: str, quality: Quality) -> str | None:
    """Whose quality is a contender's."""
    if name in quality.figures:
        return name
    return FULL if name == PLAIN and FULL in quality.figures else None


def _check_same(
    name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], partner: str
) -> None:
    for key in ("settings", "kv_cache_dtype") if name == partner else ():
        if ours.get(key) != theirs.get(key):
            raise ConfigError(
                f"{name} has {key} {ours.get(key)} in the report on quality and {theirs.get(key)} "
                "in that on throughput: give two that are called the same the same settings"
            )


def table(report: Mapping[str, Any]) -> Table:
    """A row for each contender at each setting."""
    shown = Table(
        title=f"Quality ({report['measure']}) and throughput",
        title_justify="left",
        caption=_left_out(report),
        caption_justify="left",
    )
    for column in ("setting", "contender"):
        shown.add_column(column)
    for column in (report["measure"].split(",")[0], "tokens/s", "relative to the baseline"):
        shown.add_column(column, justify="right")
    form = ".4f" if report["less_is_better"] else ".1%"
    for setting in report["settings"]:
        title = describe(setting)
        for name, point in setting["points"].items():
            ratio = Estimate(**point["ratio"])
            shown.add_row(
                title,
                name,
                Estimate(**point["quality"]).show(form),
                f"{point['tokens_per_s']:,.1f}",
                "baseline" if name == setting["baseline"] else ratio.show(),
            )
            title = ""
    return shown


def _left_out(report: Mapping[str, Any]) -> str | None:
    notes = [
        f"in the report on {what} alone: {', '.join(report[key])}"
        for what, key in (("quality", "only_in_quality"), ("throughput", "only_in_throughput"))
        if report[key]
    ]
    return "\n".join(notes) or None


def describe(setting: Mapping[str, Any]) -> str:
    """A setting of the throughput in words."""
    load = setting["load"]
    if "clients" in load:
        words = f"{load['clients']} clients"
    elif "rate" in load:
        words = f"{load['rate']:g} requests/s"
    else:
        words = str(load)
    pool = setting["pool"]
    return f"{words}, pool {pool if str(pool).endswith('%') else f'{pool} pages'}"


def figure(report: Mapping[str, Any], theme: Theme = LIGHT) -> Figure:
    """One panel for each setting: the better, the higher; the faster, the further right."""
    settings: Sequence[Mapping[str, Any]] = report["settings"]
    names = list(dict.fromkeys(name for setting in settings for name in setting["points"]))
    colours = colours_by_name(names)
    marks = marks_by_name(names)
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    with style(theme):
        drawn = Figure(figsize=(2.6 + 4 * columns, 0.9 + 3.7 * rows), layout="constrained")
        panels = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes in panels.flat[len(settings) :]:
            axes.set_visible(False)
        for axes, setting in zip(panels.flat, settings, strict=False):
            for name, point in setting["points"].items():
                _draw(axes, point, colours[name], marks[name], name, report["less_is_better"])
            axes.axvline(1, color=theme.muted, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.set_title(describe(setting), loc="left", size="medium")
            axes.grid()
        first = panels[0][0]
        if report["less_is_better"]:
            first.set_yscale("log")
            first.invert_yaxis()
        baselines = ", ".join(dict.fromkeys(setting["baseline"] for setting in settings))
        drawn.supxlabel(f"tokens/s relative to {baselines}", size="medium", color=theme.muted)
        drawn.supylabel(report["measure"], size="medium", color=theme.muted)
        drawn.suptitle(
            "Quality against throughput (better is up and right)", x=0.01, ha="left", weight="bold"
        )
        handles: dict[str, Any] = {}
        for axes in panels.flat:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        drawn.legend(list(handles.values()), list(handles), loc="outside right upper", fontsize=8)
    return drawn


def _draw(
    axes: Axes, point: Mapping[str, Any], colour: str, marker: str, label: str, is_kl: bool
) -> None:
    ratio, quality = Estimate(**point["ratio"]), Estimate(**point["quality"])
    least = LEAST_KL if is_kl else 0.0
    low, at, high = (max(each, least) for each in (quality.low, quality.value, quality.high))
    axes.errorbar(
        [ratio.value],
        [at],
        xerr=[[max(ratio.value - ratio.low, 0.0)], [max(ratio.high - ratio.value, 0.0)]],
        yerr=[[max(at - low, 0.0)], [max(high - at, 0.0)]],
        color=colour,
        marker=marker,
        markersize=6,
        elinewidth=0.9,
        linestyle="none",
        label=label,
    )
