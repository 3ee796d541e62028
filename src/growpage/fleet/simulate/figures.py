"""The figure of a simulation. Colours are from Okabe and Ito's palette."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from growpage.fleet.simulate.run import INTERVAL, Result
from growpage.fleet.simulate.workloads import Workload

NAMES = {"growpage": "this policy", "hpa": "HPA on KV usage", "simple": "simple rule"}
COLOURS = {"growpage": "#D55E00", "hpa": "#0072B2", "simple": "#009E73"}


def draw(workload: Workload, results: Sequence[Result], path: Path) -> None:
    """Replicas, KV usage and queue over time, with the load and each scaler's SLO misses."""
    figure = Figure(figsize=(9.5, 8.5), layout="constrained")
    load, replicas, usage, queue = figure.subplots(
        4, 1, sharex=True, height_ratios=(1, 1.6, 1.2, 1.2)
    )
    minutes = [moment.seconds / 60 for moment in results[0].moments]
    load.plot(minutes, [moment.rate for moment in results[0].moments], color="#1b1f24", lw=1.4)
    load.set_ylabel("requests/s")
    for result in results:
        colour = COLOURS[result.scaler]
        turns = "1 reversal" if result.reversals == 1 else f"{result.reversals} reversals"
        label = (
            f"{NAMES[result.scaler]}: {result.missed:.1%} SLO misses, "
            f"{result.replica_hours:.1f} replica-hours, {turns}"
        )
        moments = result.moments
        replicas.step(
            minutes, [m.desired for m in moments], where="post", color=colour, lw=1.6, label=label
        )
        replicas.step(minutes, [m.ready for m in moments], where="post", color=colour, lw=1, ls=":")
        usage.plot(minutes, [m.usage for m in moments], color=colour, lw=1)
        queue.plot(minutes, [m.waiting for m in moments], color=colour, lw=1)
    replicas.set_ylabel("replicas\n(dotted: ready)")
    replicas.set_ylim(bottom=0)
    usage.set_ylabel("mean KV usage")
    usage.set_ylim(0, 1.05)
    queue.set_ylabel("waiting requests")
    queue.set_yscale("symlog", linthresh=10)
    longest = max(moment.waiting for result in results for moment in result.moments)
    queue.set_ylim(0, max(20, 1.5 * longest))
    queue.set_xlabel("minutes")
    for axes in (load, replicas, usage, queue):
        _style(axes, workload)
    load.set_ylim(bottom=0)
    _explain(load, workload)
    replicas.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1, frameon=False, fontsize=9
    )
    load.set_title(
        f"Simulated load: {workload.name}; a decision every {INTERVAL:g} s", loc="left", fontsize=11
    )
    figure.savefig(path, dpi=150)


def _style(axes: Axes, workload: Workload) -> None:
    axes.grid(color="#e4e8ec", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
    for begin, end in workload.outages:
        axes.axvspan(begin / 60, end / 60, color="#b3261e", alpha=0.12, lw=0)
    if workload.update_at is not None:
        axes.axvline(workload.update_at / 60, color="#59636e", ls="--", lw=1)


def _explain(axes: Axes, workload: Workload) -> None:
    """Say what the marks mean, once."""
    marks = [(begin, "no metrics", "#b3261e") for begin, _ in workload.outages]
    if workload.update_at is not None:
        marks.append((workload.update_at, "rolling update begins", "#59636e"))
    for when, text, colour in marks:
        axes.text(when / 60, 0.05, f" {text}", color=colour, fontsize=9, va="bottom")
