"""What goes wrong with a configuration."""

from __future__ import annotations

from pydantic import ValidationError


class ConfigError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


def first_problem(error: ValidationError) -> str:
    """The first wrong field of a model, its value, and what pydantic says to it."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    return f"{name} is {first['input']!r}: {first['msg'].lower()}"
