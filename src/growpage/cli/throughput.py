"""``growpage bench throughput``: tokens a second and latency, under the load that you name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from growpage.bench.pool import Dtype
from growpage.cli.options import DTYPE_HELP

LOAD = "Load"
ENGINE = "Engine"


def throughput(
    contenders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONTENDER...",
            help="Policies with their settings, such as plain, elastic, fixed:budget=256.  "
            "[default: plain growpage elastic]",
        ),
    ] = None,
    contenders_file: Annotated[
        Path | None, typer.Option(help="YAML file with more of them, a list of mappings.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Hugging Face model.  [default: the embedded model]"),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of its tokenizer.  [default: the model's]")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the figures and vLLM's logs.")
    ] = Path("throughput-out"),
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the requests and their arrivals.")] = 0,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=LOAD,
            help="Closed loop: so many clients, each with one request at a time.  [default: 32]",
        ),
    ] = None,
    request_rate: Annotated[
        list[float] | None,
        typer.Option(rich_help_panel=LOAD, help="Open loop: requests a second. May be repeated."),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(
            rich_help_panel=LOAD,
            help="Of an open loop, as vLLM defines it: 1 is Poisson, below 1 comes in bursts.",
        ),
    ] = 1.0,
    requests: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=LOAD, help="How many.  [default: 64, or the file's]"),
    ] = None,
    requests_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=LOAD,
            help="JSON lines with 'prompt' or 'question', and 'max_tokens' if you like.  "
            "[default: requests drawn from the seed]",
        ),
    ] = None,
    prompt_tokens: Annotated[
        str,
        typer.Option(
            rich_help_panel=LOAD, help="Lengths of prompts: 128, 64-512 or 64-512:log (few long)."
        ),
    ] = "32-128",
    output_tokens: Annotated[
        str, typer.Option(rich_help_panel=LOAD, help="Lengths of answers, likewise.")
    ] = "64-512:log",
    server: Annotated[
        bool,
        typer.Option(
            "--server",
            rich_help_panel=ENGINE,
            help="Through OpenAI servers, started for this, and not in process.",
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ENGINE,
            help="A server that runs already, as http://host:port; CONTENDER is then its name.",
        ),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=ENGINE,
            help="Pages of the KV cache, or the share of what the load needs. May be repeated.  "
            "[default: 20%]",
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=ENGINE,
            help="Requests at once, at most.  [default: the number of clients, or 64]",
        ),
    ] = None,
    block_size: Annotated[
        int, typer.Option(min=1, rich_help_panel=ENGINE, help="Tokens a page.")
    ] = 32,
    prefix_caching: Annotated[
        bool, typer.Option(rich_help_panel=ENGINE, help="Let prompts share pages.")
    ] = False,
    eager: Annotated[
        bool, typer.Option(rich_help_panel=ENGINE, help="Run the model as it is, not compiled.")
    ] = True,
    dtype: Annotated[Dtype, typer.Option(rich_help_panel=ENGINE, help=DTYPE_HELP)] = "auto",
) -> None:
    """Compare throughput and latency: the same requests, in turn, under each policy.

    Contenders take turns (A B C, B C A, ...), so that what changes on the machine
    meanwhile strikes them alike, and each is started anew for its turn. Every
    answer has the length that its request gives, whatever the model would say.

    A closed loop (--clients) shows the most that an engine can do; an open loop
    (--request-rate) how long requests wait at a load that you expect. The pool
    is given as a share of what the load needs: the pages of its largest
    requests, as many as run at once.
    """
    # Only now: the other commands need none of this, and some of it is slow to import.
    from growpage.bench.launch import RunError
    from growpage.bench.server import ServerError
    from growpage.models import smollm2

    try:
        from growpage.bench.throughput.command import Asked, run
    except ModuleNotFoundError as error:
        raise _failure(f"this needs {error.name}: pip install 'growpage[bench]'") from error
    try:
        asked = Asked(
            contenders=contenders or (),
            contenders_file=contenders_file,
            model=model or smollm2.ensure(),
            tokenizer=tokenizer,
            out=out,
            rounds=rounds,
            seed=seed,
            clients=clients,
            request_rates=request_rate or (),
            burstiness=burstiness,
            requests=requests,
            requests_file=requests_file,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            server=server,
            url=url,
            pools=pool or (),
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            prefix_caching=prefix_caching,
            eager=eager,
            dtype=dtype,
        )
        status = run(asked)
    except (RunError, ServerError, smollm2.ModelError) as error:
        raise _failure(str(error)) from error
    raise typer.Exit(status)


def _failure(message: str) -> typer.Exit:
    typer.echo(f"Error: {message}", err=True)
    return typer.Exit(2)
