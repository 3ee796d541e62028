"""What a check answers, before it has a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from growpage.diagnosis.evidence import Engine, Evidence
from growpage.diagnosis.finding import Status


@dataclass(frozen=True)
class Verdict:
    """How an engine, or all of them, stand."""

    status: Status
    detail: str
    remedy: str = ""


EngineCheck = Callable[[Engine], Verdict]
"""May raise :class:`~growpage.diagnosis.evidence.MissingMetricError`, which makes it unknown."""
EvidenceCheck = Callable[[Evidence], Verdict]


def ok(detail: str) -> Verdict:
    """Nothing to do."""
    return Verdict(Status.OK, detail)


def unknown(detail: str, remedy: str = "") -> Verdict:
    """The evidence does not tell; the remedy says how it would."""
    return Verdict(Status.UNKNOWN, detail, remedy)


def warning(detail: str, remedy: str) -> Verdict:
    """It works, but not as it could."""
    return Verdict(Status.WARNING, detail, remedy)


def failure(detail: str, remedy: str) -> Verdict:
    """It does not do what it is there for."""
    return Verdict(Status.FAILURE, detail, remedy)
