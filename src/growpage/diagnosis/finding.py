"""What a diagnosis says: findings, each with its status and advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How a finding stands, worst first."""

    FAILURE = "failure"
    """Growpage cannot run, or does not do what it is there for."""
    WARNING = "warning"
    """It works, but worse than it could or not as its settings say."""
    UNKNOWN = "unknown"
    """The evidence does not tell."""
    OK = "ok"

    @property
    def severity(self) -> int:
        """0 for the worst."""
        return list(Status).index(self)


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis."""

    name: str
    """The check's name; ``docs/troubleshooting.md`` has an entry for each."""
    status: Status
    detail: str
    """What was found, with the numbers."""
    remedy: str = ""
    """What to do, with the flag to change; empty where nothing is to be done."""


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; those that are equally bad keep their order, in which to mend them."""
    return sorted(findings, key=lambda finding: finding.status.severity)
