"""``growpage doctor``: what is wrong with this machine, a running server, or a fleet of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.diagnosis.errors import UnreachableError
from growpage.diagnosis.evidence import Evidence
from growpage.diagnosis.finding import Finding, Status, by_severity
from growpage.diagnosis.run import diagnose

FAILED = 1
UNREACHABLE = 3
WARNED = 4

COLOURS = {
    Status.FAILURE: "red",
    Status.WARNING: "yellow",
    Status.UNKNOWN: "blue",
    Status.OK: "green",
}


def doctor(
    url: Annotated[
        str | None, typer.Option(help="Address of a running server, such as http://host:8000.")
    ] = None,
    prometheus_url: Annotated[
        str | None, typer.Option(help="Address of a Prometheus that scrapes the servers.")
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            min=1, max=3600, help="With --url: seconds between its two samples.  [default: 10]"
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --prometheus-url: this model's engines only.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="With --prometheus-url: how far to look back, such as 30m.  [default: 1h]"
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key of the server, or bearer token of Prometheus.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="File with the budget that the servers were given, to check it too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 4 if there are warnings.")
    ] = False,
) -> None:
    """Find out what is wrong, and which flag to change.

    Without an address: whether this machine can run growpage, how it will, and
    what is missing. With --url or --prometheus-url: how running engines do, by
    their metrics. docs/troubleshooting.md explains every check.

    Exit status: 0 no failure, 1 a failure was found, 2 wrong usage or no such
    server, 3 the server or Prometheus cannot be reached, 4 (--strict) there are
    warnings but no failure. What is unknown changes nothing.
    """
    if url is not None and prometheus_url is not None:
        raise ConfigError("--url and --prometheus-url cannot be combined; run doctor twice")
    if url is None:
        _refuse("--url", watch=watch)
    if prometheus_url is None:
        _refuse("--prometheus-url", model=model, since=since)
    if url is not None:
        source, findings = _remote(config, lambda: _ask_server(url, api_key, watch or 10.0))
    elif prometheus_url is not None:
        source, findings = _remote(
            config, lambda: _ask_prometheus(prometheus_url, api_key, model, since or "1h")
        )
    else:
        _refuse("--url or --prometheus-url", api_key=api_key, config=config)
        source, findings = "this machine", _local()
    if as_json:
        _print_json(source, findings)
    else:
        _print_table(source, findings)
    raise typer.Exit(_exit_status(findings, strict))


def _local() -> list[Finding]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Only now: it imports torch and vLLM, which takes seconds, and need not be installed here.
    from growpage.engine.diagnosis import diagnose as diagnose_machine

    return by_severity(diagnose_machine())


def _remote(config: Path | None, ask: Callable[[], Evidence]) -> tuple[str, list[Finding]]:
    """The source and the findings, or an end with one line that says why there are none."""
    settings = BudgetConfig.from_file(config) if config is not None else None
    try:
        evidence = ask()
    except UnreachableError as error:
        typer.echo(f"growpage: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"growpage doctor needs {error.name} to ask others: pip install 'growpage[fleet]'"
        ) from error
    return evidence.source, diagnose(evidence, settings)


def _ask_server(url: str, api_key: str | None, watch_s: float) -> Evidence:
    from rich.console import Console

    from growpage.diagnosis.server import from_server

    with Console(stderr=True).status(f"Watching {url} for {watch_s:g} seconds"):
        return from_server(url, api_key=api_key, watch_s=watch_s)


def _ask_prometheus(url: str, api_key: str | None, model: str | None, since: str) -> Evidence:
    from growpage.diagnosis.prometheus import from_prometheus

    return from_prometheus(url, model=model, since=since, api_key=api_key)


def _refuse(needed: str, **given: object) -> None:
    """Refuse options that would silently do nothing."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} needs {needed}")


def _print_json(source: str, findings: Sequence[Finding]) -> None:
    rows = [
        {"name": f.name, "status": f.status.value, "detail": f.detail, "remedy": f.remedy}
        for f in findings
    ]
    report = {"ok": not _any(findings, Status.FAILURE), "source": source, "findings": rows}
    typer.echo(json.dumps(report, indent=2))


def _print_table(source: str, findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        advice = f"\n[dim]-> {escape(finding.remedy)}[/dim]" if finding.remedy else ""
        table.add_row(
            f"[{COLOURS[finding.status]}]{finding.status.value}[/]",
            finding.name,
            escape(finding.detail) + advice,
        )
    console = Console()
    console.print(f"growpage doctor: {source}", markup=False, highlight=False)
    console.print(table)
    counts = (
        f"{status.value}: {sum(finding.status is status for finding in findings)}"
        for status in Status
    )
    console.print(", ".join(counts), highlight=False)


def _exit_status(findings: Sequence[Finding], strict: bool) -> int:
    if _any(findings, Status.FAILURE):
        return FAILED
    return WARNED if strict and _any(findings, Status.WARNING) else 0


def _any(findings: Sequence[Finding], status: Status) -> bool:
    return any(finding.status is status for finding in findings)
