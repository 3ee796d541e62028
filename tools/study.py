"""Runs the study behind the defaults: ``make study ARGS="--data FOLDER --qwen FOLDER"``.

Every part is one ``growpage bench`` command whose result goes to ``docs/results``. A part that was
stopped goes on where it was; ``--only NAME`` runs one. All of it takes a day on two cores.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

# As seen from the checkout, in which it runs: reports state their commands.
STUDIES, RESULTS = Path("studies"), Path("docs", "results")
FAMILIES = ("recall", "copying", "sorting", "series", "bookkeeping")


@dataclass(frozen=True)
class Part:
    """One command of the study."""

    name: str
    """Of its result."""
    command: tuple[str, ...]
    """After ``growpage bench``; ``{data}`` stands for the folder of problems, ``{studies}`` for
    that of the contenders."""
    contenders: str | None = None
    """A file under ``studies/``, without its ending."""
    qwen: bool = False
    """Whether the model is Qwen2.5-Coder-1.5B-Instruct, not the embedded one."""
    goes_on: str | None = None
    """Name of another part with the same options, what it has finished being of use to this one."""

    @property
    def is_timed(self) -> bool:
        """Whether it wants a machine that does nothing else."""
        return self.command[0] == THROUGHPUT


ANSWERS, REPLAY = ("quality", "answers"), ("quality", "replay")
THROUGHPUT = "throughput"
GSM8K, ESSAYS = "{data}/gsm8k_dev.jsonl", "{studies}/essays.jsonl"
AT_ONCE = ("--requests", "32", "--concurrency", "32", "--dtype", "float32")
SHORT_QUESTIONS = (GSM8K, "--new-tokens", "250", *AT_ONCE)
LONG_ANSWERS = (ESSAYS, "--new-tokens", "480", *AT_ONCE)
SHORT_OF_MEMORY = (
    *("--clients", "24", "--pool", "20%"),
    *("--prompt-tokens", "32-64", "--output-tokens", "256-512"),
)

PARTS = (
    Part(
        "demand-smollm2",
        (*ANSWERS, *FAMILIES, "--count", "25", "--base", "fixed 256"),
        "demand-smollm2",
    ),
    Part(
        "demand-floors",
        (*ANSWERS, *FAMILIES, "--count", "25", "--base", "fixed 256", "--dtype", "float32"),
        "demand-floors",
    ),
    Part("rules-smollm2", (*REPLAY, GSM8K, "--requests", "24", "--base", "fixed 128"), "rules"),
    Part(
        "givers-smollm2",
        (
            *(*REPLAY, GSM8K, "--requests", "24", "--base", "fixed 160"),
            *("--pool", "45%", "--load", "saturated"),
        ),
        "givers",
    ),
    Part(
        "givers-floors",
        (
            *(*REPLAY, GSM8K, "--requests", "24", "--base", "fixed 160", "--dtype", "float32"),
            *("--pool", "45%", "--load", "saturated"),
        ),
        "givers-floors",
    ),
    Part("scores-smollm2", (*REPLAY, GSM8K, "--requests", "24", "--base", "window"), "scores"),
    Part(
        "demand-qwen",
        (*ANSWERS, *FAMILIES, "--count", "25", "--difficulty", "medium", "--base", "fixed 256"),
        "demand-qwen",
        qwen=True,
    ),
    Part(
        "gsm8k-8-bit",
        (
            *(*ANSWERS, GSM8K, "--count", "500", "--max-tokens", "400"),
            *("--concurrency", "128", "--base", "full"),
        ),
        "gsm8k-8-bit",
        qwen=True,
    ),
    Part(
        "gsm8k-qwen",
        (*ANSWERS, GSM8K, "--count", "500", "--max-tokens", "400", "--base", "fixed 256"),
        "gsm8k-qwen",
        qwen=True,
    ),
    Part(
        "givers-qwen",
        (
            *(*REPLAY, GSM8K, "--requests", "24", "--base", "fixed 160"),
            *("--pool", "45%", "--load", "saturated"),
        ),
        "givers-qwen",
        qwen=True,
    ),
    Part("rules-qwen", (*REPLAY, GSM8K, "--requests", "16", "--base", "fixed 128"), "rules", True),
    Part("scores-qwen", (*REPLAY, GSM8K, "--requests", "16", "--base", "window"), "scores", True),
    Part(
        "memory-bound",
        (
            *(THROUGHPUT, *SHORT_OF_MEMORY),
            *("--requests", "60", "--rounds", "2"),
        ),
        "memory-bound",
    ),
    Part(
        "memory-bound-qwen",
        (
            THROUGHPUT,
            *("--clients", "16", "--requests", "32", "--pool", "25%", "--rounds", "1"),
            *("--prompt-tokens", "32-64", "--output-tokens", "128-256"),
        ),
        "memory-bound-qwen",
        qwen=True,
    ),
    Part(
        "memory-bound-quality",
        (
            *(*REPLAY, ESSAYS, "--requests", "32", "--new-tokens", "480"),
            *("--concurrency", "24", "--pool", "20%", "--load", "saturated"),
            *("--base", "fixed 256"),
        ),
        "memory-bound-quality",
    ),
    Part(
        "memory-bound-floors",
        (
            *(*REPLAY, ESSAYS, "--requests", "32", "--new-tokens", "480", "--dtype", "float32"),
            *("--concurrency", "24", "--pool", "20%", "--load", "saturated"),
            *("--base", "fixed 192"),
        ),
        "memory-bound-floors",
    ),
    Part("analysis-sufficient", ("analyse", "sufficient", *SHORT_QUESTIONS)),
    Part(
        "analysis-adaptive",
        ("analyse", "adaptive", *SHORT_QUESTIONS),
        goes_on="analysis-sufficient",
    ),
    Part("analysis-demand", ("analyse", "demand", *LONG_ANSWERS)),
    Part("analysis-signal", ("analyse", "signal", *LONG_ANSWERS), goes_on="analysis-demand"),
    *(
        Part(
            f"pages-{page}",
            (
                *(THROUGHPUT, *SHORT_OF_MEMORY),
                *("--requests", "30", "--rounds", "1", "--block-size", str(page)),
            ),
            f"pages-{page}",
        )
        for page in (16, 32, 64)
    ),
    Part(
        "roomy",
        (
            THROUGHPUT,
            *("--clients", "16", "--requests", "32", "--pool", "120%", "--rounds", "20"),
            *("--prompt-tokens", "32-64", "--output-tokens", "96-128"),
        ),
        "roomy",
    ),
    Part(
        "long",
        (
            THROUGHPUT,
            *("--clients", "1", "--requests", "1", "--pool", "105%", "--rounds", "1"),
            *("--prompt-tokens", "64", "--output-tokens", "7936"),
        ),
        "long",
    ),
)


def main(
    data: Annotated[Path, typer.Option(help="Folder with gsm8k_dev.jsonl.", exists=True)],
    qwen: Annotated[
        Path | None, typer.Option(help="Folder of Qwen2.5-Coder-1.5B-Instruct.  [default: skip it]")
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder for what is not finished.")] = Path(
        "study-out"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Name of a part; may be repeated.")] = None,
) -> None:
    """Run the parts of the study, one after the other."""
    known = [part.name for part in PARTS]
    if unknown := set(only or ()) - set(known):
        raise typer.BadParameter(f"{', '.join(unknown)} is not one of {', '.join(known)}")
    for part in PARTS:
        if (only and part.name not in only) or (part.qwen and qwen is None):
            typer.echo(f"{part.name}: skipped")
            continue
        arguments = [argument.format(data=data, studies=STUDIES) for argument in part.command]
        place, result = work / (part.goes_on or part.name), RESULTS / f"{part.name}.json"
        if part.contenders:
            option = "--contenders-file" if part.is_timed else "--contenders"
            arguments += [option, str(STUDIES / f"{part.contenders}.yaml")]
        if part.is_timed:
            arguments += ["--out", str(place)]
        else:
            arguments += ["--work", str(place), "--out", str(result)]
        if part.qwen:
            arguments += ["--model", str(qwen)]
        typer.echo(f"{part.name}: growpage bench {' '.join(arguments)}")
        subprocess.run([sys.executable, "-m", "growpage", "bench", *arguments], check=True)
        if part.is_timed:
            shutil.copy(place / "throughput.json", result)
            for figure in place.glob("*.png"):
                shutil.copy(figure, RESULTS / f"{part.name}-{figure.name.split('-')[0]}.png")


if __name__ == "__main__":
    typer.run(main)
