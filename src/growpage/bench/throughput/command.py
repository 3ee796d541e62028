"""``growpage bench throughput``, once its command line has been read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.throughput import bench_serve, figures, report
from growpage.bench.throughput.experiment import Experiment, StartEngine
from growpage.bench.throughput.summary import Comparison, Run, Summary, compare

REPORT = "throughput.json"
RUNS = "runs.jsonl"


@dataclass(frozen=True)
class Description:
    """What the report says of how it was measured, beside the experiment itself."""

    model: str
    """As a server names it."""
    tokenizer: str
    """A folder, for ``vllm bench serve``."""
    seed: int
    requests_from: str
    """In words."""
    engine: dict[str, Any] = field(default_factory=dict)
    """How engines are started."""


def run(
    experiment: Experiment,
    start: StartEngine,
    about: Description,
    out: Path,
    console: Console,
) -> int:
    """Compare the contenders, show the tables, write the report.

    Args:
        experiment: what is compared, checked.
        start: brings a contender up.
        about: for the report.
        out: a folder that exists.
        console: where progress and tables go.

    Returns:
        An exit status: 0, or 1 when a request failed.

    Raises:
        RunError, ServerError: an engine failed.
    """
    _write_bench_serve(experiment, about, out)
    runs: list[Run] = []
    with console.status("") as status, (out / RUNS).open("w") as lines:
        for each in experiment.run(start, status.update):
            runs.append(each)
            lines.write(json.dumps(report.run_to_dict(each)) + "\n")
            lines.flush()
            console.print(report.progress(each), highlight=False, soft_wrap=True)
    comparisons = compare(runs, experiment.baseline)
    for comparison in comparisons:
        console.print(report.table(comparison))
    for sentence in report.headlines(comparisons):
        console.print(sentence, highlight=False, soft_wrap=True)
    for file in _write(comparisons, _describe(experiment, about), out):
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    return _verdict(comparisons, console)


def _write_bench_serve(experiment: Experiment, about: Description, out: Path) -> None:
    (out / bench_serve.DATASET).write_text(bench_serve.dataset(experiment.requests))
    script = bench_serve.script(
        experiment.loads,
        len(experiment.requests),
        about.seed,
        model=about.model,
        tokenizer=about.tokenizer,
    )
    (out / bench_serve.SCRIPT).write_text(script)


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


def _describe(experiment: Experiment, about: Description) -> dict[str, Any]:
    """How it was measured."""
    prompts = [len(request.prompt_token_ids) for request in experiment.requests]
    outputs = [request.output_tokens for request in experiment.requests]
    return {
        "command": sys.argv,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": about.model,
        "contenders": [each.model_dump() for each in experiment.contenders],
        "workload": {
            "requests_from": about.requests_from,
            "requests": len(prompts),
            "prompt_tokens": {"sum": sum(prompts), "min": min(prompts), "max": max(prompts)},
            "output_tokens": {"sum": sum(outputs), "min": min(outputs), "max": max(outputs)},
            "decoding": "greedy, to the given length",
        },
        "rounds": experiment.rounds,
        "seed": about.seed,
        "engine": {
            "block_size": experiment.block_size,
            "max_num_seqs": experiment.max_num_seqs,
            **about.engine,
        },
        "machine": describe_machine(),
        "versions": describe_versions(),
    }
