"""``growpage bench throughput``, behind its command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from growpage.bench.contenders import Contender, read_contenders
from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.pool import Dtype
from growpage.bench.throughput import bench_serve, figures, report
from growpage.bench.throughput.engines import Engines, RunningServer
from growpage.bench.throughput.experiment import Experiment, StartEngine
from growpage.bench.throughput.load import DEFAULT_CLIENTS, Lengths, make_loads
from growpage.bench.throughput.requests import draw_requests, load_tokenizer, read_requests
from growpage.bench.throughput.summary import Comparison, Run, Summary, compare
from growpage.budget.errors import ConfigError

REPORT = "throughput.json"
RUNS = "runs.jsonl"


DEFAULT_CONTENDERS = ("plain", "growpage", "elastic")
DEFAULT_REQUESTS = 64
DEFAULT_POOL = "20%"
OPEN_LOOP_MAX_NUM_SEQS = 64


@dataclass(frozen=True)
class Asked:
    """The command line; its help says what each option means."""

    contenders: Sequence[str]
    contenders_file: Path | None
    model: Path
    tokenizer: Path | None
    out: Path
    rounds: int
    seed: int
    clients: int | None
    request_rates: Sequence[float]
    burstiness: float
    requests: int | None
    requests_file: Path | None
    prompt_tokens: str
    output_tokens: str
    server: bool
    url: str | None
    pools: Sequence[str]
    max_num_seqs: int | None
    block_size: int
    prefix_caching: bool
    eager: bool
    dtype: Dtype

    @property
    def tokenizer_folder(self) -> Path:
        """Where prompts get their lengths from."""
        return self.tokenizer or self.model

    @property
    def most_at_once(self) -> int:
        """Requests that an engine runs at once, at most."""
        default = OPEN_LOOP_MAX_NUM_SEQS if self.request_rates else DEFAULT_CLIENTS
        return self.max_num_seqs or self.clients or default


def run(asked: Asked, console: Console | None = None) -> int:
    """Compare the contenders, show the tables, write the report.

    Args:
        asked: the command line.
        console: where progress and tables go; standard output by default.

    Returns:
        An exit status: 0, or 1 when a request failed.

    Raises:
        ConfigError: something that was asked for cannot be; nothing has been started.
        RunError, ServerError: an engine failed.
    """
    console = console or Console()
    running = None
    if asked.url is not None:
        name = _only_name(asked)
        running = RunningServer.at(asked.url)
        experiment = _experiment(
            replace(asked, pools=[str(running.pool_pages)], block_size=running.block_size),
            [Contender(name=name, settings=None)],
        )
    else:
        experiment = _experiment(asked, _contenders(asked))
        experiment.check()
    asked.out.mkdir(parents=True, exist_ok=True)
    model = running.model if running else asked.model.name
    _write_bench_serve(experiment, asked, model)
    comparisons = compare(
        _run_all(experiment, _starter(experiment, asked, running), asked.out, console),
        experiment.baseline,
    )
    for comparison in comparisons:
        console.print(report.table(comparison))
    for sentence in report.headlines(comparisons):
        console.print(sentence, highlight=False, soft_wrap=True)
    for file in _write(comparisons, _describe(experiment, asked, model), asked.out):
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    return _verdict(comparisons, console)


# ---- what was asked for ----------------------------------------------------------------------


def _contenders(asked: Asked) -> list[Contender]:
    named = asked.contenders or (() if asked.contenders_file else DEFAULT_CONTENDERS)
    return read_contenders(named, asked.contenders_file)


def _only_name(asked: Asked) -> str:
    """What a server that runs already is called.

    Raises:
        ConfigError: the command line says more than can be asked of it.
    """
    given = {
        "--contenders-file": asked.contenders_file,
        "--server": asked.server,
        "--pool": asked.pools,
        "--dtype": asked.dtype != "auto",
    }
    for flag, value in given.items():
        if value:
            raise ConfigError(f"{flag} starts engines, and --url names one that runs: give either")
    names = asked.contenders or ["server"]
    if len(names) > 1:
        raise ConfigError(
            f"--url is one server, and {len(names)} contenders are named: name one, as you like"
        )
    return names[0]


def _experiment(asked: Asked, contenders: Sequence[Contender]) -> Experiment:
    loads = make_loads(asked.clients, asked.request_rates, asked.burstiness, asked.seed)
    prompt, output = Lengths.of(asked.prompt_tokens), Lengths.of(asked.output_tokens)
    tokenizer = load_tokenizer(asked.tokenizer_folder)
    if asked.requests_file:
        requests = read_requests(tokenizer, asked.requests_file, asked.requests, output, asked.seed)
    else:
        count = asked.requests or DEFAULT_REQUESTS
        requests = draw_requests(tokenizer, count, prompt, output, asked.seed)
    return Experiment(
        contenders=contenders,
        requests=requests,
        loads=loads,
        pools=asked.pools or [DEFAULT_POOL],
        rounds=asked.rounds,
        block_size=asked.block_size,
        max_num_seqs=asked.most_at_once,
    )


def _starter(experiment: Experiment, asked: Asked, running: RunningServer | None) -> StartEngine:
    if running is not None:
        return lambda _contender, _pool_pages: running.engine(experiment.requests)
    engines = Engines(
        experiment,
        asked.model,
        asked.out,
        asked.seed,
        prefix_caching=asked.prefix_caching,
        eager=asked.eager,
        dtype=asked.dtype,
    )
    return engines.served if asked.server else engines.in_process


# ---- doing it --------------------------------------------------------------------------------


def _run_all(experiment: Experiment, start: StartEngine, out: Path, console: Console) -> list[Run]:
    """Each run is written down as soon as it is done."""
    runs: list[Run] = []
    with console.status("") as status, (out / RUNS).open("w") as lines:
        for each in experiment.run(start, status.update):
            runs.append(each)
            lines.write(json.dumps(report.run_to_dict(each)) + "\n")
            lines.flush()
            console.print(report.progress(each), highlight=False, soft_wrap=True)
    return runs


def _write_bench_serve(experiment: Experiment, asked: Asked, model: str) -> None:
    (asked.out / bench_serve.DATASET).write_text(bench_serve.dataset(experiment.requests))
    script = bench_serve.script(
        experiment.loads,
        len(experiment.requests),
        asked.seed,
        model=model,
        tokenizer=str(asked.tokenizer_folder.absolute()),
    )
    (asked.out / bench_serve.SCRIPT).write_text(script)


def _write(comparisons: Sequence[Comparison], about: dict[str, Any], out: Path) -> list[Path]:
    content = about | {
        "settings": [report.to_dict(comparison) for comparison in comparisons],
        "crossovers": report.crossovers_to_dict(comparisons),
    }
    files = {REPORT: (json.dumps(content, indent=2) + "\n").encode(), **figures.draw(comparisons)}
    for name, data in files.items():
        (out / name).write_bytes(data)
    return [out / name for name in (*files, RUNS, bench_serve.SCRIPT, bench_serve.DATASET)]


def _verdict(comparisons: Sequence[Comparison], console: Console) -> int:
    summaries: list[Summary] = [each for one in comparisons for each in one.summaries.values()]
    failures = [f"{each.contender}, {why}" for each in summaries for why in each.failures]
    for failure in failures[:10]:
        console.print(f"failed: {failure}", style="red", highlight=False, soft_wrap=True)
    return 1 if failures else 0


def _describe(experiment: Experiment, asked: Asked, model: str) -> dict[str, Any]:
    """How it was measured."""
    prompts = [len(request.prompt_token_ids) for request in experiment.requests]
    outputs = [request.output_tokens for request in experiment.requests]
    source = (
        asked.requests_file.name
        if asked.requests_file
        else f"drawn: prompts of {asked.prompt_tokens} tokens, answers of {asked.output_tokens}"
    )
    engine: dict[str, Any] = {"reached": asked.url or ("server" if asked.server else "in process")}
    if asked.url is None:
        engine |= {
            "prefix_caching": asked.prefix_caching,
            "eager": asked.eager,
            "dtype": asked.dtype,
        }
    return {
        "command": sys.argv,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model,
        "contenders": [each.model_dump() for each in experiment.contenders],
        "workload": {
            "requests_from": source,
            "requests": len(prompts),
            "prompt_tokens": {"sum": sum(prompts), "min": min(prompts), "max": max(prompts)},
            "output_tokens": {"sum": sum(outputs), "min": min(outputs), "max": max(outputs)},
            "decoding": "greedy, to the given length",
        },
        "rounds": experiment.rounds,
        "seed": asked.seed,
        "engine": {
            "block_size": experiment.block_size,
            "max_num_seqs": experiment.max_num_seqs,
            **engine,
        },
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
