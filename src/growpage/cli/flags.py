"""The ``--growpage-*`` flags: one for each setting of a budget, made from its field."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from growpage.budget.config import BudgetConfig, allowed_values
from growpage.budget.errors import ConfigError

PREFIX = "--growpage-"


class _Parser(argparse.ArgumentParser):
    """Reports a usage error as the configuration errors are reported."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def budget_parser(description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser of the budget's flags alone; what it does not know is for vLLM."""
    parser = _Parser(
        prog="growpage serve",
        usage="growpage serve [MODEL] [--growpage-* ...] [any flag of vllm serve]",
        description=description,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags = parser.add_argument_group("budget")
    flags.add_argument(
        f"{PREFIX}config",
        metavar="FILE",
        help="YAML or JSON file with any of these settings; flags win over it.",
    )
    for name, field in BudgetConfig.model_fields.items():
        about = " ".join((field.description or "").split())
        default = "" if field.default is None else f" Default: {field.default}."
        flags.add_argument(
            f"{PREFIX}{name.replace('_', '-')}",
            dest=name,
            default=argparse.SUPPRESS,
            metavar=name.upper(),
            help=f"{about} ({allowed_values(name)}).{default}".replace("%", "%%"),
        )
    return parser


def split_budget(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, BudgetConfig, list[str]]:
    """Take the budget's flags out of ``arguments``.

    Returns:
        Options that the caller added to ``parser``, the budget, and the rest, which is for vLLM.

    Raises:
        ConfigError: an unknown ``--growpage-`` flag, a wrong value, or a bad file.
    """
    options, rest = parser.parse_known_args(arguments)
    for argument in rest:
        if argument.startswith(PREFIX):
            names = ", ".join(PREFIX + name.replace("_", "-") for name in BudgetConfig.model_fields)
            raise ConfigError(f"{argument.split('=')[0]} is not a flag; the flags are {names}")
    settings = {name: vars(options)[name] for name in BudgetConfig.model_fields if name in options}
    if options.growpage_config is not None:
        return options, BudgetConfig.from_file(options.growpage_config, **settings), rest
    return options, BudgetConfig.of(settings), rest
