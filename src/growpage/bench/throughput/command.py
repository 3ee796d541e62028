"""``growpage bench throughput``, once its command line has been read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from growpage.bench.contenders import Contender
from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.throughput import report
from growpage.bench.throughput.engine_process import engine_process
from growpage.bench.throughput.experiment import Engine, Experiment
from growpage.bench.throughput.protocol import EngineSpec
from growpage.bench.throughput.summary import Run, compare

REPORT = "throughput.json"
RUNS = "runs.jsonl"


@dataclass(frozen=True)
class Options:
    """How engines are started, and what the report says of the load."""

    model: Path
    out: Path
    seed: int = 0
    prefix_caching: bool = False
    eager: bool = True
    source: str = ""
    """Where the requests come from, in words."""


def run(experiment: Experiment, options: Options, console: Console) -> int:
    """Compare the contenders, show the tables, write the report.

    Returns:
        An exit status: 0, or 1 when a request failed.

    Raises:
        ConfigError: something cannot run.
        RunError: an engine failed.
    """
    experiment.check()
    options.out.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def start(contender: Contender, pool_pages: int) -> Iterator[Engine]:
        spec = EngineSpec(
            contender=contender,
            model=str(options.model),
            requests=list(experiment.requests),
            pool_pages=pool_pages,
            block_size=experiment.block_size,
            max_num_seqs=contender.concurrency or experiment.max_num_seqs,
            prefix_caching=options.prefix_caching,
            eager=options.eager,
            seed=options.seed,
        )
        with engine_process(spec, options.out / f"{contender.slug}.log") as engine:
            yield engine

    runs: list[Run] = []
    with console.status("") as status, (options.out / RUNS).open("w") as lines:
        for each in experiment.run(start, status.update):
            runs.append(each)
            lines.write(_line(each) + "\n")
            lines.flush()
    comparisons = compare(runs, experiment.baseline)
    for comparison in comparisons:
        console.print(report.table(comparison))
    for sentence in report.headline(comparisons):
        console.print(sentence, highlight=False)
    content = _describe(experiment, options) | {
        "settings": [report.to_dict(comparison) for comparison in comparisons]
    }
    (options.out / REPORT).write_text(json.dumps(content, indent=2) + "\n")
    console.print(f"wrote {options.out / REPORT}", highlight=False, soft_wrap=True)
    return _verdict([s for c in comparisons for s in c.summaries.values()], console)


def _verdict(summaries: Sequence[Any], console: Console) -> int:
    failures = [f"{each.contender}: {why}" for each in summaries for why in each.failures]
    for failure in failures[:10]:
        console.print(f"[red]failed: {failure}")
    return 1 if failures else 0


def _line(run: Run) -> str:
    return json.dumps(
        {
            "contender": run.contender,
            "round": run.round,
            "load": run.setting.load.model_dump(),
            "pool": run.setting.pool,
            "pool_pages": run.pool_pages,
            "measurement": run.measurement.model_dump(),
        }
    )


def _describe(experiment: Experiment, options: Options) -> dict[str, Any]:
    """How it was measured."""
    prompts = [len(request.prompt_token_ids) for request in experiment.requests]
    outputs = [request.output_tokens for request in experiment.requests]
    return {
        "command": sys.argv,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": options.model.name,
        "contenders": [each.model_dump() for each in experiment.contenders],
        "workload": {
            "source": options.source,
            "requests": len(prompts),
            "prompt_tokens": {"sum": sum(prompts), "min": min(prompts), "max": max(prompts)},
            "output_tokens": {"sum": sum(outputs), "min": min(outputs), "max": max(outputs)},
        },
        "rounds": experiment.rounds,
        "seed": options.seed,
        "block_size": experiment.block_size,
        "max_num_seqs": experiment.max_num_seqs,
        "prefix_caching": options.prefix_caching,
        "eager": options.eager,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
