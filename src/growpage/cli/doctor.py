"""``growpage doctor``: says whether this machine can run growpage, and what is missing."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether this machine can run growpage, how it will, and what is missing.

    Exits with 1 if growpage cannot run here.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from growpage.engine.diagnosis import Status, diagnose

    findings = list(diagnose())
    failed = any(finding.status is Status.FAILURE for finding in findings)
    if as_json:
        rows = [
            {"name": f.name, "status": f.status.value, "detail": f.detail, "remedy": f.remedy}
            for f in findings
        ]
        typer.echo(json.dumps({"ok": not failed, "findings": rows}, indent=2))
    else:
        colour = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILURE: "red"}
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            advice = f"\n[dim]-> {escape(finding.remedy)}[/dim]" if finding.remedy else ""
            table.add_row(
                f"[{colour[finding.status]}]{finding.status.value}[/]",
                finding.name,
                escape(finding.detail) + advice,
            )
        console = Console()
        console.print(table)
        console.print("growpage cannot run here." if failed else "growpage can run here.")
    raise typer.Exit(1 if failed else 0)
