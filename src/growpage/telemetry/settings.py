"""What an operator asks for besides the budget: metrics, the live page, a rollout file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from growpage.budget.errors import ConfigError, first_problem

OPERATIONS_KEY = "growpage_operations"
"""Their place in vLLM's ``--additional-config``, beside the budget's."""


class Operations(BaseModel):
    """Settings that change nothing about a request's capacity by themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metrics: bool = False
    """Send metrics along with vLLM's statistics. For servers only: an offline ``LLM`` has nobody
    who takes them out again."""
    live: Path | None = None
    """A folder for the state that the live page shows; none for no live page."""
    rollout: Path | None = None
    """The rollout file; none to enforce the budget for everyone."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Validate ``settings``.

        Raises:
            ConfigError: one line for the first wrong one.
        """
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ConfigError(f"{OPERATIONS_KEY}.{first_problem(error)}") from None
