"""``growpage bench quality replay``: what eviction costs, on answers given with full KV."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from growpage.bench.contenders import Contender, read_contenders
from growpage.budget.errors import ConfigError
from growpage.cli.options import (
    Concurrency,
    Model,
    NewTokens,
    Questions,
    Requests,
    ServedIn,
    Temperature,
)

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "": 1}


LoadChoice = Literal["saturated", "varying", "both"]


def replay(
    prompts: Questions,
    model: Model = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy and its settings, as in 'fixed:budget=256'; may be repeated.  [default: "
            "full, fixed at several budgets, random, every, growpage, elastic]"
        ),
    ] = None,
    contenders: Annotated[
        Path | None, typer.Option(help="YAML list of contenders, each a mapping with a policy.")
    ] = None,
    work: Annotated[
        Path, typer.Option(help="Folder for finished parts: a stopped measurement goes on there.")
    ] = Path("replay-out"),
    out: Annotated[
        Path | None, typer.Option(help="The report, as JSON.  [default: WORK/replay.json]")
    ] = None,
    requests: Requests = 16,
    new_tokens: NewTokens = 200,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 8,
    dtype: ServedIn = "auto",
    pool: Annotated[
        str, typer.Option(help="Pages of the pool, or the share of what full KV needs at its peak.")
    ] = "50%",
    load: Annotated[
        LoadChoice, typer.Option(help="All requests at once, or as they arrive by chance.")
    ] = "both",
    mean_gap: Annotated[
        float, typer.Option(min=0.01, help="Steps between two arrivals, when they vary.")
    ] = 25,
    base: Annotated[
        str | None, typer.Option(help="Name of a contender that the others are compared to.")
    ] = None,
    exact_bytes: Annotated[
        str, typer.Option(help="Disk for whole distributions; where more is needed: the likeliest.")
    ] = "8GiB",
    top: Annotated[int, typer.Option(min=1, max=20, help="Those likeliest tokens.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, answers and intervals.")] = 0,
) -> None:
    """Feed answers given with full KV back token by token, and compare what would have been said.

    Every contender is judged at the same positions of the same text: KL to full
    KV, whether the likeliest token is the same, perplexity; at the memory that
    each request held. Takes minutes; one engine after the other.
    """
    limit = _bytes(exact_bytes)
    check_pool(pool)
    named = read_contenders(contender or [], contenders) if contender or contenders else None
    # Only now: the other commands need none of this, and it is slow to import.
    try:
        from growpage.bench.look import to_png
        from growpage.bench.replay_figure import replay_figure
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"growpage bench quality replay needs {error.name}: pip install 'growpage[demo]'"
        ) from error
    from growpage.bench.replay import Load
    from growpage.bench.replay_defaults import default_contenders
    from growpage.bench.replay_report import summarise
    from growpage.bench.replay_table import tables
    from growpage.bench.subject import Subject

    subject = Subject.of(
        prompts,
        model,
        work=work,
        requests=requests,
        new_tokens=new_tokens,
        temperature=temperature,
        concurrency=concurrency,
        dtype=dtype,
        seed=seed,
        mean_gap=mean_gap,
        most_exact_bytes=limit,
        top=top,
    )
    chosen = named or default_contenders(subject.longest)
    _check_base(base, chosen)
    loads: list[Load] = ["saturated", "varying"] if load == "both" else [load]
    try:
        measurement = subject.replay(
            chosen, lambda line: typer.echo(line, err=True), pool=pool, loads=loads
        )
    except RuntimeError as error:  # an engine's
        typer.echo(f"growpage: {error}", err=True)
        raise typer.Exit(1) from error
    report = {
        "command": shlex.join(["growpage", *sys.argv[1:]]),
        "questions": subject.questions,
        **summarise(measurement, base=base, seed=seed),
    }
    file = out or work / "replay.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    picture = file.with_suffix(".png")
    picture.write_bytes(to_png(replay_figure(report)))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(f"KL {report['kl']}; {report['intervals']}\n", highlight=False)
    for table in tables(report):
        console.print(table, "")
    console.print(f"Report: {file}, figure: {picture}", highlight=False)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)?", text.strip())
    if match is None:
        raise ConfigError(f"--exact-bytes is {text!r}, but must be bytes, such as 8GiB or 500MiB")
    return int(float(match[1]) * UNITS[match[2] or ""])


def check_pool(pool: str) -> None:
    """Refuse an option --pool that is neither pages nor a share.

    Raises:
        ConfigError: it is.
    """
    try:
        Contender(name="pool", settings=None, pool=pool)
    except ValueError:
        raise ConfigError(
            f"--pool is {pool!r}, but must be pages, such as 40, or a share, such as 50%"
        ) from None


def _check_base(base: str | None, contenders: list[Contender]) -> None:
    names = [each.name for each in contenders]
    if base is not None and base not in names:
        raise ConfigError(f"--base is {base!r}, but must be one of {', '.join(names)}")
