"""``growpage serve``: vLLM's OpenAI server with a budget on every request."""

from __future__ import annotations

import argparse
import atexit
import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.budget.rollout import Rollout
from growpage.cli.flags import PREFIX, budget_parser, split_budget
from growpage.engine.kwargs import CONFIG_KEY, engine_kwargs
from growpage.telemetry.settings import OPERATIONS_KEY, Operations

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
    add_operations(parser)
    options, budget, rest = split_budget(parser, context.args)
    operations = read_operations(options)
    _check_block_size(budget, rest)
    command = vllm_command(budget, rest, operations)
    # Only now: vLLM takes seconds to import.
    from growpage.engine.server import allow_plugins, check_flags, parse_flags, run_server

    args = parse_flags(command[2:])
    if args.model_tag is None and not _has_flag(rest, "--model", "--config"):
        command[2:2] = _default_model(rest)
        args = parse_flags(command[2:])
    plugins = allow_plugins()
    if options.print_command:
        typer.echo(f"VLLM_PLUGINS={shlex.quote(plugins)} {shlex.join(command)}")
        return
    check_flags(args)
    run_server(args)


def add_operations(parser: argparse.ArgumentParser) -> None:
    """Add the flags for what an operator asks for besides the budget."""
    flags = parser.add_argument_group("operations")
    flags.add_argument(
        f"{PREFIX}rollout",
        metavar="FILE",
        type=Path,
        help="YAML or JSON file that says for whom budgets are enforced; read again when it "
        "changes. Default: enforced for everyone.",
    )
    flags.add_argument(
        f"{PREFIX}live",
        action="store_true",
        help="Show the pool, requests and decisions at /growpage.",
    )
    flags.add_argument(
        f"{PREFIX}no-metrics",
        action="store_true",
        help="Export no metrics of growpage at /metrics.",
    )


def read_operations(options: argparse.Namespace) -> Operations:
    """What the flags ask for; the folder that the live page needs is made.

    Raises:
        ConfigError: the rollout file is missing or wrong.
    """
    rollout: Path | None = options.growpage_rollout
    if rollout is not None:
        Rollout.from_file(rollout)
    live = None
    if options.growpage_live and not options.print_command:
        live = Path(tempfile.mkdtemp(prefix="growpage-live-"))
        atexit.register(shutil.rmtree, live, ignore_errors=True)
    elif options.growpage_live:
        live = Path(tempfile.gettempdir()) / "growpage-live"
    return Operations(
        metrics=not options.growpage_no_metrics,
        live=live,
        rollout=rollout.absolute() if rollout else None,
    )


def vllm_command(
    budget: BudgetConfig, arguments: Sequence[str], operations: Operations
) -> list[str]:
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
    additional[OPERATIONS_KEY] = operations.model_dump(mode="json", exclude_none=True)
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
