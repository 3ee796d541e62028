"""``growpage serve``: vLLM's OpenAI server with a budget on every request."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Any

import typer

from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.cli.flags import budget_parser, split_budget
from growpage.engine.kwargs import CONFIG_KEY, engine_kwargs

DESCRIPTION = """\
Serve MODEL with vLLM's OpenAI server, with a KV-cache budget on every request.
Without MODEL it serves the embedded default, SmolLM2-135M-Instruct."""

EPILOG = """\
Every other flag goes to `vllm serve`; see `vllm serve --help`.
The same with plain vLLM: `growpage serve --print-command` shows the command."""


def serve(context: typer.Context) -> None:
    """Serve a model with vLLM's OpenAI server and a budget on every request."""
    parser = budget_parser(DESCRIPTION, EPILOG)
    parser.add_argument(
        "--print-command", action="store_true", help="Print the vllm serve command and exit."
    )
    options, budget, rest = split_budget(parser, context.args)
    _check_block_size(budget, rest)
    command = vllm_command(budget, rest)
    # Only now: vLLM takes seconds to import.
    from growpage.engine.server import check_flags, parse_flags, run_server

    args = parse_flags(command[2:])
    if args.model_tag is None and not _has_flag(rest, "--model", "--config"):
        command[2:2] = _default_model(rest)
        args = parse_flags(command[2:])
    if options.print_command:
        typer.echo(shlex.join(command))
        return
    check_flags(args)
    run_server(args)


def vllm_command(budget: BudgetConfig, arguments: Sequence[str]) -> list[str]:
    """The ``vllm serve`` command for ``budget``; an ``--additional-config`` given is kept.

    Raises:
        ConfigError: it names a class that growpage must provide, or is no JSON object.
    """
    for flag in ("--scheduler-cls", "--worker-cls"):
        if _has_flag(arguments, flag):
            raise ConfigError(f"{flag} cannot be combined with growpage, which brings its own")
    rest, additional = _take_additional_config(arguments)
    kwargs = engine_kwargs(budget)
    additional[CONFIG_KEY] = kwargs["additional_config"][CONFIG_KEY]
    return [
        "vllm",
        "serve",
        *rest,
        *("--scheduler-cls", kwargs["scheduler_cls"]),
        *("--worker-cls", kwargs["worker_cls"]),
        *("--additional-config", json.dumps(additional)),
    ]


def _take_additional_config(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    rest: list[str] = []
    value: str | None = None
    pending = iter(arguments)
    for argument in pending:
        flag, equals, inline = argument.partition("=")
        if flag.replace("_", "-") == "--additional-config":
            value = inline if equals else next(pending, "")
        else:
            rest.append(argument)
    try:
        parsed = json.loads(value) if value is not None else {}
    except json.JSONDecodeError as error:
        raise ConfigError(f"--additional-config is {value!r}, but must be JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"--additional-config is {value!r}, but must be a JSON object")
    return rest, parsed


def _default_model(arguments: Sequence[str]) -> list[str]:
    """The embedded model and, unless another is given, its name."""
    from growpage.models.smollm2 import DEFAULT_MODEL_NAME, ensure

    named = _has_flag(arguments, "--served-model-name")
    return [str(ensure()), *(() if named else ("--served-model-name", DEFAULT_MODEL_NAME))]


def _has_flag(arguments: Sequence[str], *flags: str) -> bool:
    return any(argument.split("=")[0].replace("_", "-") in flags for argument in arguments)


def _check_block_size(budget: BudgetConfig, arguments: Sequence[str]) -> None:
    """Refuse a budget that does not fit a given ``--block-size``, before vLLM is loaded."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--block-size", "--block_size")
    size = parser.parse_known_args(arguments)[0].block_size
    if size is not None and size.isdecimal() and int(size) > 0:
        budget.for_block_size(int(size))
