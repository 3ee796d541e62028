"""``growpage bench analyse``: the paper's own analyses, for any model and any questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from growpage.bench.pool import BLOCK_SIZE, Dtype
from growpage.budget.config import BudgetConfig
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
from growpage.cli.quality_replay import check_pool

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from growpage.bench.subject import Subject

analyse_app = typer.Typer(
    help="The paper's own analyses, as tables and figures, for your model and your questions.",
    no_args_is_help=True,
)

Work = Annotated[
    Path,
    typer.Option(
        help="Folder for finished parts: a stopped analysis goes on there, and the analyses share "
        "them."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The report, as JSON; its figure beside it.  [default: in the work folder]"),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the answers and intervals.")]
Epsilon = Annotated[
    float, typer.Option(min=0, help="Mean KL to full KV, in nats a token, that suffices.")
]
Budgets = Annotated[
    list[int] | None,
    typer.Option(
        "--budget",
        min=1,
        help="Tokens of a fixed budget to try; may be repeated.  [default: a ladder up to the "
        "longest request]",
    ),
]
MeasuringSettings = Annotated[
    list[str] | None,
    typer.Option(
        help="How demand is measured, as in 'equal_norm=true'; may be repeated. One of beta_short, "
        "beta_long, warmup, equal_norm, demand_over_heads."
    ),
]

WORK = Path("analyses-out")


@analyse_app.callback()
def _group() -> None:
    pass


@analyse_app.command("sufficient")
def sufficient(
    questions: Questions,
    model: Model = None,
    work: Work = WORK,
    out: Out = None,
    requests: Requests = 16,
    new_tokens: NewTokens = 200,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 8,
    dtype: ServedIn = "auto",
    seed: Seed = 0,
    epsilon: Epsilon = 0.05,
    budget: Budgets = None,
) -> None:
    """Find the least fixed budget that each request gets by with (the paper's Figure 2).

    Answers given with full KV are replayed at a ladder of budgets; a request's B*
    is the least from which on its mean KL to full KV stays within --epsilon.
    """
    with _analysing():
        from growpage.bench.analyses import sufficient as analysis

        subject = _subject(
            questions, model, work, requests, new_tokens, temperature, concurrency, dtype, seed
        )
        budgets = _ladder(budget, subject)
        measurement = subject.replay(analysis.rungs_of(budgets), _say)
        found = analysis.needs(measurement, budgets, epsilon)
        report = {**subject.describe(), **analysis.summarise(found, epsilon)}
        _finish(report, analysis.table(report), analysis.figure(report), out or work, "sufficient")


@analyse_app.command("adaptive")
def adaptive(
    questions: Questions,
    model: Model = None,
    work: Work = WORK,
    out: Out = None,
    requests: Requests = 16,
    new_tokens: NewTokens = 200,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 8,
    dtype: ServedIn = "auto",
    seed: Seed = 0,
    epsilon: Epsilon = 0.05,
    budget: Budgets = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy and its settings, as in 'elastic:watermark=2'; may be repeated.  "
            "[default: growpage, every, elastic, and fixed at the middle of the ladder]"
        ),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            help="Pages of these contenders' pool, or the share of what full KV needs at its peak."
        ),
    ] = "50%",
) -> None:
    """Compare the capacity that policies give to each request with its B* (appendix I).

    Finds B* as `sufficient` does, and replays the same answers under each
    contender. A policy that gives to those that need it has a high correlation.
    """
    with _analysing():
        from growpage.bench.analyses import adaptive as analysis
        from growpage.bench.analyses.sufficient import needs, rungs_of
        from growpage.bench.contenders import read_contenders
        from growpage.bench.replay import check

        check_pool(pool)
        named = read_contenders(contender) if contender else None
        subject = _subject(
            questions, model, work, requests, new_tokens, temperature, concurrency, dtype, seed
        )
        budgets = _ladder(budget, subject)
        compared = named or analysis.default_contenders(budgets)
        check(compared)
        measurement = subject.replay([*rungs_of(budgets), *compared], _say, pool)
        found = needs(measurement, budgets, epsilon)
        names = [each.name for each in compared]
        report = {
            **subject.describe(),
            "epsilon": epsilon,
            "budgets": budgets,
            "pool": pool,
            **analysis.summarise(measurement, found, names, seed),
        }
        _finish(report, analysis.table(report), analysis.figure(report), out or work, "adaptive")


@analyse_app.command("demand")
def demand(
    questions: Questions,
    model: Model = None,
    work: Work = WORK,
    out: Out = None,
    requests: Requests = 16,
    new_tokens: NewTokens = 400,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 8,
    dtype: ServedIn = "auto",
    seed: Seed = 0,
    mass: Annotated[
        list[float] | None,
        typer.Option(help="The p of D_p; may be repeated.  [default: 0.8, 0.9, 0.95]"),
    ] = None,
    setting: MeasuringSettings = None,
) -> None:
    """Draw attention sparsity and demand over the course of decoding (the paper's Figure 3).

    Requests are served with full KV, and measured once a page: D_p of both
    summaries and its share of the cache, delta, predicted losses, entropy.
    """
    with _analysing():
        from growpage.bench.analyses import demand as analysis
        from growpage.bench.analyses.observe import contender, observe

        masses = list(dict.fromkeys(mass or analysis.MASSES))
        measuring = [contender(each, setting or ()) for each in masses]
        subject = _subject(
            questions, model, work, requests, new_tokens, temperature, concurrency, dtype, seed
        )
        observed = dict(zip(masses, observe(subject, measuring, _say), strict=True))
        report = {**subject.describe(), **analysis.summarise(observed, seed)}
        _finish(report, analysis.table(report), analysis.figure(report), out or work, "demand")


@analyse_app.command("signal")
def signal(
    questions: Questions,
    model: Model = None,
    work: Work = WORK,
    out: Out = None,
    requests: Requests = 16,
    new_tokens: NewTokens = 400,
    temperature: Temperature = 0.0,
    concurrency: Concurrency = 8,
    dtype: ServedIn = "auto",
    seed: Seed = 0,
    mass: Annotated[float, typer.Option(help="The p of D_p.")] = 0.9,
    setting: MeasuringSettings = None,
) -> None:
    """Correlate what is measured at a boundary with the change of demand to come.

    With full KV: delta, D_p, the predicted loss and the entropy at each boundary
    against the change of D_p(short) until the next 1, 2 and 4.
    """
    with _analysing():
        from growpage.bench.analyses import signal as analysis
        from growpage.bench.analyses.observe import contender, observe

        measuring = contender(mass, setting or ())
        subject = _subject(
            questions, model, work, requests, new_tokens, temperature, concurrency, dtype, seed
        )
        (observed,) = observe(subject, [measuring], _say)
        report = {**subject.describe(), **analysis.summarise(observed, seed)}
        _finish(report, analysis.table(report), analysis.figure(report), out or work, "signal")


@analyse_app.command("curve")
def curve(
    quality: Annotated[
        Path, typer.Argument(help="JSON of growpage bench quality replay, or of answers.")
    ],
    throughput: Annotated[Path, typer.Argument(help="JSON of growpage bench throughput.")],
    out: Annotated[Path, typer.Option(help="The report, as JSON; its figure beside it.")] = Path(
        "curve.json"
    ),
    load: Annotated[
        Literal["saturated", "varying"], typer.Option(help="Under which replays are taken.")
    ] = "saturated",
) -> None:
    """Draw quality against throughput, from two reports (the paper's Figure 1b).

    Contenders are joined by their names. Starts no engine.
    """
    with _analysing():
        from growpage.bench.analyses import curve as analysis

        sources = {"quality": quality, "throughput": throughput}
        fast = analysis.read_throughput(throughput)
        report = {
            "sources": {name: file.name for name, file in sources.items()},
            "seed": fast.get("seed"),
            "measured": {name: analysis.provenance(file) for name, file in sources.items()},
            **analysis.join(analysis.read_quality(quality, load), fast),
        }
        _finish(report, analysis.table(report), analysis.figure(report), out, "curve")


def _subject(
    questions: Path,
    model: Path | None,
    work: Path,
    requests: int,
    new_tokens: int,
    temperature: float,
    concurrency: int,
    dtype: Dtype,
    seed: int,
) -> Subject:
    from growpage.bench.subject import Subject

    return Subject.of(
        questions,
        model,
        work=work,
        requests=requests,
        new_tokens=new_tokens,
        temperature=temperature,
        concurrency=concurrency,
        dtype=dtype,
        seed=seed,
    )


def _ladder(budgets: list[int] | None, subject: Subject) -> list[int]:
    from growpage.bench.analyses.sufficient import ladder

    if budgets:
        return sorted(set(budgets))
    config = BudgetConfig()
    return ladder(subject.longest, BLOCK_SIZE, config.sink + config.recent + BLOCK_SIZE)


@contextmanager
def _analysing() -> Iterator[None]:
    """Say what is missing, or what an engine failed with, in a line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"growpage bench analyse needs {error.name}: pip install 'growpage[demo]'"
        ) from error
    except RuntimeError as error:  # an engine's
        typer.echo(f"growpage: {error}", err=True)
        raise typer.Exit(1) from error


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _finish(report: Mapping[str, Any], table: Table, figure: Figure, out: Path, name: str) -> None:
    """Write and show everything; ``out`` is a JSON file, or a folder for one of this name."""
    from growpage.bench.analyses.output import write

    file = out if out.suffix == ".json" else out / f"{name}.json"
    picture = write(report, figure, file)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(f"Report: {file}, figure: {picture}", highlight=False, soft_wrap=True)
