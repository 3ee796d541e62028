"""Options that several commands of ``growpage bench`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from growpage.bench.pool import Dtype

Questions = Annotated[
    Path, typer.Argument(help="JSONL with a question a line (and an id and a family).")
]
Model = Annotated[
    Path | None,
    typer.Option(help="Folder of a Hugging Face model.  [default: the embedded model]"),
]
DTYPE_HELP = (
    "What the model is served in, as vLLM's --dtype. On a CPU without AVX-512 many requests at "
    "once may be several times faster in float32."
)
ServedIn = Annotated[Dtype, typer.Option("--dtype", help=DTYPE_HELP)]
Requests = Annotated[int, typer.Option(min=2, help="Questions taken from the file.")]
NewTokens = Annotated[int, typer.Option(min=2, help="Tokens of an answer, at most.")]
Temperature = Annotated[float, typer.Option(min=0, help="Of the answers; 0 is greedy.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests at once, at most.")]
