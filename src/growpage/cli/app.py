"""``growpage``: the command-line application."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from growpage._version import __version__
from growpage.budget.errors import ConfigError
from growpage.cli.autoscale import autoscale_app
from growpage.cli.bench import bench_app
from growpage.cli.demo import demo
from growpage.cli.doctor import doctor
from growpage.cli.model import model_app
from growpage.cli.serve import serve
from growpage.cli.top import top
from growpage.engine.errors import UnsupportedError

app = typer.Typer(
    name="growpage",
    help="On-demand KV-cache budgets for stock vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# Its flags are vLLM's and the budget's, so they are parsed by those, --help included.
app.command(
    "serve",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
)(serve)
app.command("demo")(demo)
app.command("doctor")(doctor)
app.command("top")(top)
app.add_typer(bench_app, name="bench")
app.add_typer(autoscale_app, name="autoscale")
app.add_typer(model_app, name="model")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"growpage {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the application; an error that the user can mend is one line and exit status 2."""
    try:
        app()
    except (ConfigError, UnsupportedError) as error:
        print(f"growpage: {error}", file=sys.stderr)
        sys.exit(2)
