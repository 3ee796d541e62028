"""``growpage bench quality answers``: right answers under each contender."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from growpage.budget.errors import ConfigError
from growpage.cli.options import Model, ServedIn


def answers(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Problems: JSONL files; gsm8k, math-500, amc23, aime24; or the families recall, "
            "copying, sorting, series, bookkeeping."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The result, as JSON; a figure goes beside it.")],
    contender: Annotated[
        list[str] | None,
        typer.Option("--contender", "-c", help="As in 'fixed:budget=256'; may be repeated."),
    ] = None,
    contenders: Annotated[
        Path | None, typer.Option(help="YAML file with a list of contenders.")
    ] = None,
    model: Model = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder for answers, from which a stopped run goes on.  [default: OUT.work]"
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Problems of each source.")] = 100,
    difficulty: Annotated[
        str, typer.Option(help="Of the families: easy (some 135M parameters) or medium (1.5B).")
    ] = "easy",
    base: Annotated[
        str | None,
        typer.Option(help="The contender whose loss is the measure.  [default: the first 'fixed']"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer, where its problem does not say.")
    ] = 512,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Pages of all pools but full KV's, or a share of what full KV needed, such as "
            "50%.  [default: memory for all]"
        ),
    ] = None,
    dtype: ServedIn = "auto",
    raw: Annotated[bool, typer.Option(help="Without the model's chat template.")] = False,
    async_scheduling: Annotated[
        bool, typer.Option(help="Schedule a step before the last has ended, as vLLM does.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the families, of sampling and of vLLM.")] = 0,
) -> None:
    """Count right answers under each contender, at the memory it held.

    Full KV answers first, with memory for all, whether it is named or not; the
    other contenders are compared to it problem by problem. A stopped run goes
    on where it was when the same command is given again.
    """
    # Only now: the other commands need none of this, and some of it is slow to import.
    from rich.console import Console

    from growpage.bench import answers as run
    from growpage.bench.answers_report import by_family, grade_all, table
    from growpage.bench.contenders import BASELINE, read_contenders
    from growpage.bench.machine import describe_machine, describe_versions
    from growpage.bench.pool import page_bytes
    from growpage.bench.problems import ProblemError
    from growpage.bench.sources import read_sources
    from growpage.models import smollm2

    console = Console(stderr=True)
    try:
        named = run.with_full(read_contenders(contender or [], contenders))
        problems = read_sources(sources, count, difficulty, seed)
        folder = model or smollm2.ensure()
        bytes_of = {
            each.name: page_bytes(folder, kv_cache_dtype=each.kv_cache_dtype, dtype=dtype)
            for each in named
        }
        compared = base or next((each.name for each in named if each.policy == "fixed"), "full")
        if compared not in bytes_of:
            raise ConfigError(f"--base {compared}: the contenders are {', '.join(bytes_of)}")
        setup = run.Setup(
            model=folder.name,
            problems=run.digest(problems),
            samples=samples,
            temperature=temperature,
            max_tokens=max_tokens,
            concurrency=concurrency,
            pool=pool,
            raw=raw,
            async_scheduling=async_scheduling,
            dtype=dtype,
            seed=seed,
        )
        responses = run.answer_all(
            setup,
            folder,
            named,
            run.questions_of(problems, setup, folder),
            work or out.with_suffix(".work"),
            console.print,
        )
        graded = grade_all(problems, responses)
    except (ProblemError, smollm2.ModelError, ValueError) as error:
        raise ConfigError(str(error)) from error
    found = by_family(
        problems,
        graded,
        run.demands_of(problems, folder),
        bytes_of,
        full=named[0].name,
        base=compared,
        yardstick=[each.name for each in named if each.line == BASELINE],
    )
    report = {
        "command": shlex.join(["growpage", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "setup": setup.model_dump(),
        "sources": sources,
        "count": count,
        "difficulty": difficulty,
        "base": compared,
        "contenders": [each.model_dump() for each in named],
        "figures": {
            family: {name: row.as_json() for name, row in rows.items()}
            for family, rows in found.items()
        },
        "scores": {
            name: {problem: row.score for problem, row in rows.items()}
            for name, rows in graded.items()
        },
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    try:
        from growpage.bench.answers_figure import draw
    except ModuleNotFoundError:
        console.print("no figure: it needs matplotlib, pip install 'growpage[bench]'")
    else:
        draw(out.with_suffix(".svg"), found, {each.name: each.line for each in named})
    # Last: whoever reads may close the pipe.
    shown = Console(width=None if sys.stdout.isatty() else 180)
    for family, rows in found.items():
        shown.print(table(family, rows))
