"""``growpage demo``: see what budgets do, on a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the figures and vLLM's logs.")
    ] = Path("demo-out"),
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face model.  [default: the embedded model]"),
    ] = None,
    policies: Annotated[
        str, typer.Option(help="Policies to compare, with commas between them, in this order.")
    ] = "full,fixed,growpage,elastic",
    requests: Annotated[
        int, typer.Option(min=1, max=32, help="Requests of the workload; fewer are quicker.")
    ] = 32,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that an answer may have.")
    ] = 384,
) -> None:
    """Serve one workload under several policies and compare them.

    32 requests of unequal demand share a page pool that holds about a fifth of
    them at full length. The same requests and the same pool are run under each
    policy, one after the other; a table and a folder with a report and figures
    show what came of it. Takes a few minutes.

    Policies: full, fixed, growpage, every, elastic, thin (elastic down to what each request was
    promised); and vLLM without the plugin: plain
    (the same pool) and roomy (a pool for everybody).
    """
    # Only now: the other commands need none of this, and some of it is slow to import.
    from growpage.models import smollm2

    try:
        from growpage.bench.demo import DemoError, run_demo
    except ModuleNotFoundError as error:
        raise _failure(f"growpage demo needs {error.name}: pip install 'growpage[demo]'") from error
    names = [name.strip() for name in policies.split(",") if name.strip()]
    try:
        status = run_demo(
            out,
            model or smollm2.ensure(),
            names,
            size=requests,
            max_new_tokens=max_new_tokens,
        )
    except (DemoError, smollm2.ModelError) as error:
        raise _failure(str(error)) from error
    raise typer.Exit(status)


def _failure(message: str) -> typer.Exit:
    typer.echo(f"Error: {message}", err=True)
    return typer.Exit(2)
