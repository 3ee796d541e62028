"""A simulation's results as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from growpage.fleet.config import Policy
from growpage.fleet.simulate.replicas import ReplicaModel
from growpage.fleet.simulate.run import INTERVAL, Result
from growpage.fleet.simulate.workloads import Workload


def table(workload: Workload, results: Sequence[Result]) -> Table:
    """For a terminal."""
    rows = Table(
        "scaler",
        title=f"{workload.name}: {results[0].requests} requests in {workload.seconds / 60:.0f} min",
    )
    for heading in (
        "missed",
        "max wait",
        "replica-h",
        "max",
        "out",
        "in",
        "turns",
    ):
        rows.add_column(heading, justify="right")
    for result in results:
        rows.add_row(
            result.scaler,
            f"{result.missed:.2%}",
            f"{result.longest_wait:.0f} s",
            f"{result.replica_hours:.1f}",
            str(max((moment.desired for moment in result.moments), default=0)),
            str(result.scale_outs),
            str(result.scale_ins),
            str(result.reversals),
        )
    return rows


def write_json(
    path: Path,
    workload: Workload,
    policy: Policy,
    model: ReplicaModel,
    results: Sequence[Result],
    seed: int,
) -> None:
    """Everything that it takes to check the figures, or to make them again."""
    content = {
        "workload": {
            "name": workload.name,
            "seconds": workload.seconds,
            "outages": workload.outages,
            "update_at": workload.update_at,
        },
        "seed": seed,
        "interval_seconds": INTERVAL,
        "replica": asdict(model),
        "policy": policy.model_dump(),
        "results": [result.as_json() for result in results],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
