"""A staged rollout: for whom budgets are enforced, and within which limits.

Read from a file that may change while the server runs (``growpage serve --growpage-rollout``). A
request for which nothing is enforced is only watched: decided about as if it were, and served as by
plain vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from growpage.budget.errors import ConfigError, first_problem
from growpage.budget.settings_file import load_settings

Mode = Literal["observe", "enforce"]

TENANT_FIELD = "growpage_tenant"
"""The tenant's name among a request's ``vllm_xargs``, which vLLM hands on to the engine."""


@dataclass(frozen=True)
class Origin:
    """Where a request comes from, as far as a rollout tells requests apart."""

    tenant: str | None = None
    adapter: str | None = None
    """Name of its LoRA adapter."""


class Selection(BaseModel):
    """Requests that match any of the lists."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tenants: frozenset[str] = frozenset()
    """Tenants, as the request names its own (header ``X-Growpage-Tenant``, or ``growpage_tenant``
    in the field ``vllm_xargs`` of its body)."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters."""
    models: frozenset[str] = frozenset()
    """Servers by their served model name."""
    namespaces: frozenset[str] = frozenset()
    """Servers by the Kubernetes namespace that they run in."""


class Rollout(BaseModel):
    """One stage. Immutable: a change is a new object."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    mode: Mode = "enforce"
    """observe (decide and record, but serve as plain vLLM does) or enforce."""
    only: Selection | None = None
    """Enforce for these alone and observe everyone else. Default: everyone."""
    max_growth_rate: Annotated[float, Field(gt=0)] | None = 0.3
    """Share of its pages that a request may grow by in a second, at least one page at a time; none
    for no limit."""
    quotas: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Pages that the requests of a tenant may hold together before they stop growing."""
    changed_by: str | None = None
    """Who made this stage, for the log."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Load a YAML file, or a JSON file named so.

        Raises:
            ConfigError: the file is missing, is not a mapping, or holds a wrong field.
        """
        content = load_settings(path)
        if not isinstance(content, Mapping):
            raise ConfigError(f"{path} must hold a mapping such as 'mode: observe'")
        try:
            return cls.model_validate(dict(content))
        except ValidationError as error:
            raise ConfigError(
                f"{path}: {first_problem(error)}; the settings are {', '.join(cls.model_fields)}"
            ) from None

    def enforces(self, origin: Origin, models: frozenset[str], namespace: str | None) -> bool:
        """Whether the budget of a request from ``origin`` is enforced on such a server."""
        if self.mode == "observe":
            return False
        only = self.only
        return (
            only is None
            or origin.tenant in only.tenants
            or origin.adapter in only.adapters
            or not only.models.isdisjoint(models)
            or namespace in only.namespaces
        )

    def changes(self, before: Rollout) -> dict[str, tuple[Any, Any]]:
        """Each setting that differs: its name, its old and its new value."""
        old, new = before.model_dump(mode="json"), self.model_dump(mode="json")
        return {name: (old[name], new[name]) for name in new if old[name] != new[name]}


UNSTAGED = Rollout(max_growth_rate=None)
"""Without a rollout file: enforced for everyone, without limits."""
