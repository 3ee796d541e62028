"""What a benchmark compares: policies with their settings, each with a name.

    full
    fixed:budget=256
    elastic:giver=least_loss,pool=50%
    fixed 8-bit=fixed:budget=512,kv_cache_dtype=fp8
    plain

A contender is a policy, and after a colon its settings: those of :class:`BudgetConfig`, and
``kv_cache_dtype``, ``pool`` and ``concurrency`` for the engine. A name may stand before it.
``plain`` is vLLM without the plugin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.budget.settings_file import load_settings

PLAIN = "plain"
"""vLLM without the plugin."""

DIALS = frozenset({"budget", "tau", "growth_rate", "min_pages", "max_pages", "watermark"})
"""Settings that trade memory for quality; contenders that differ in them alone are one line."""

BASELINE = "fixed"
"""The line that others are compared to at equal memory."""


class Contender(BaseModel):
    """One of those that are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """What it is called in tables and files."""
    settings: dict[str, Any] | None
    """Fields of the budget's configuration that are set; none for vLLM without the plugin."""
    kv_cache_dtype: str = "auto"
    """How vLLM stores keys and values."""
    pool: str | None = Field(default=None, pattern=r"^([1-9]\d*|\d+(\.\d+)?%)$")
    """Pages of its pool, or the share of what full KV needs; default: the benchmark's own."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests at once, at most; default: the benchmark's own."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read one as it is written on a command line.

        Raises:
            ConfigError: what is written has no policy, or a wrong setting.
        """
        head, _, tail = text.partition(":")
        name, _, policy = head.rpartition("=")
        if not policy.strip():
            raise ConfigError(f"{text!r} names no policy; write one as in 'fixed:budget=256'")
        given: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in tail.split(","))):
            key, equals, value = (each.strip() for each in part.partition("="))
            if not equals:
                raise ConfigError(f"{part!r} in {text!r} is no setting; write it as key=value")
            given[key] = value
        return cls.made_of(
            {"name": name.strip() or text.strip(), "policy": policy.strip(), **given}
        )

    @classmethod
    def made_of(cls, fields: Mapping[str, Any]) -> Self:
        """From a mapping with a ``policy``, an optional ``name``, and settings.

        Raises:
            ConfigError: a setting is unknown or has a wrong value, or there is no policy.
        """
        rest = dict(fields)
        if "policy" not in rest:
            raise ConfigError(f"{rest} names no policy; write one as in policy: elastic")
        own = {
            key: rest.pop(key) for key in ("kv_cache_dtype", "pool", "concurrency") if key in rest
        }
        name = rest.pop("name", str(rest["policy"]))
        if not isinstance(name, str):
            raise ConfigError(
                f"a contender's name is {name!r}, which is no text: write it in quotes (YAML takes "
                "yes, no, on, off, numbers and dates for something else)"
            )
        settings: dict[str, Any] | None = None
        if rest.get("policy") == PLAIN:
            if len(rest) > 1:
                raise ConfigError(
                    f"{name}: {PLAIN} is vLLM without the plugin, and has no settings"
                )
        else:
            try:
                settings = BudgetConfig.of(rest).model_dump(exclude_unset=True)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        try:
            return cls.model_validate({"name": name, "settings": settings, **own})
        except ValueError:
            raise ConfigError(
                f"{name}: {own} must have pool as pages or a share such as 50%, and concurrency as "
                "a number of requests"
            ) from None

    @property
    def policy(self) -> str:
        """The policy's name, or ``plain``."""
        default = BudgetConfig.model_fields["policy"].default
        return PLAIN if self.settings is None else str(self.settings.get("policy", default))

    @property
    def line(self) -> str:
        """What it is one point of: its policy, and its settings except the dials."""
        settings = {
            key: value
            for key, value in (self.settings or {}).items()
            if key not in DIALS and key != "policy"
        }
        if self.kv_cache_dtype != "auto":
            settings["kv_cache_dtype"] = self.kv_cache_dtype
        parts = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
        return f"{self.policy}: {parts}" if parts else self.policy

    @property
    def slug(self) -> str:
        """The name as a file's name."""
        return re.sub(r"[^\w.%=-]+", "_", self.name)

    def pool_pages(self, need: int, default: int) -> int:
        """Pages of its pool where full KV needs ``need``, and others get ``default``."""
        if self.pool is None:
            return default
        if self.pool.endswith("%"):
            return max(1, round(need * float(self.pool[:-1]) / 100))
        return int(self.pool)


def read_contenders(texts: Sequence[str], file: Path | None = None) -> list[Contender]:
    """All contenders of a command line and of a YAML file, a list of mappings, in this order.

    Raises:
        ConfigError: one is wrong, two have the same name, or there is none.
    """
    rows = [] if file is None else load_settings(file)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file} must hold a list of contenders, each a mapping with a policy")
    found = [Contender.of(text) for text in texts] + [Contender.made_of(row) for row in rows]
    if not found:
        raise ConfigError("there is nothing to compare: name at least one policy")
    for attribute in ("name", "slug"):
        seen: set[str] = set()
        for contender in found:
            value = getattr(contender, attribute)
            if value in seen:
                raise ConfigError(f"two contenders are called {value!r}: give them other names")
            seen.add(value)
    return found
