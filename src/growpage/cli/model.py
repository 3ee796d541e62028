"""``growpage model``: the embedded default model."""

from __future__ import annotations

from typing import Annotated

import typer

from growpage.models import smollm2

model_app = typer.Typer(help="The embedded default model.", no_args_is_help=True)


@model_app.callback()
def _group() -> None:
    """Keep ``path`` a sub-command; Typer would fold a single command into its group."""


@model_app.command("path")
def path(
    no_build: Annotated[
        bool,
        typer.Option("--no-build", help="Do not build the model when it is absent: fail instead."),
    ] = False,
) -> None:
    """Print the folder of the default model, building it first when it is not in the cache.

    Only the path goes to standard output; progress and errors go to standard error.
    """
    try:
        folder = smollm2.locate() if no_build else smollm2.ensure()
    except smollm2.ModelError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    if folder is None:
        typer.echo(
            f"Error: {smollm2.DEFAULT_MODEL_NAME} is not built yet: run `growpage model path`.",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(folder)
