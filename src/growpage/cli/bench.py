"""``growpage bench``: what a budget costs in quality, and what it brings in speed."""

from __future__ import annotations

import typer

from growpage.cli.analyse import analyse_app
from growpage.cli.quality_answers import answers
from growpage.cli.quality_replay import replay
from growpage.cli.throughput import throughput

bench_app = typer.Typer(
    help="Measure quality and throughput, on your model and your data.",
    no_args_is_help=True,
)
quality_app = typer.Typer(
    help="What compression costs: against full KV, at the memory actually held.",
    no_args_is_help=True,
)
bench_app.add_typer(quality_app, name="quality")
bench_app.add_typer(analyse_app, name="analyse")
quality_app.command("answers")(answers)
quality_app.command("replay")(replay)
bench_app.command("throughput")(throughput)
