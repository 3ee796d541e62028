"""Decisions as JSON: one object a line, with everything that they were taken from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import structlog

from growpage.budget.errors import ConfigError
from growpage.fleet.controller import Record

log = structlog.get_logger(__name__)


def as_json(record: Record, config_digest: str) -> dict[str, Any]:
    """A record in plain types.

    ``time`` is Prometheus' time of the data, in UTC; ``config`` a hash of the configuration.
    """
    decision = record.decision
    target = decision.target
    return {
        "time": None if record.time is None else _utc(record.time),
        "model": decision.model,
        "target": {"namespace": target.namespace, "kind": target.kind, "name": target.name},
        "action": str(decision.action),
        "current": decision.current,
        "desired": decision.desired,
        "reason": decision.reason,
        "data": str(decision.state),
        "acted": str(record.acted),
        "error": record.error or None,
        "inputs": [
            {
                "name": each.name,
                "value": each.value,
                "age_seconds": None if each.age_seconds is None else round(each.age_seconds, 3),
                "query": each.query,
            }
            for each in decision.inputs
        ],
        "config": config_digest,
    }


def as_line(record: Record, config_digest: str) -> str:
    """A record as one line of JSON."""
    return json.dumps(as_json(record, config_digest), separators=(",", ":"), allow_nan=False)


def as_text(record: Record) -> str:
    """A record as one line for people."""
    decision = record.decision
    replicas = "?" if decision.current is None else str(decision.current)
    if decision.desired != decision.current:
        replicas += f" -> {decision.desired}"
    outcome = f" [{record.acted}{': ' + record.error if record.error else ''}]"
    return (
        f"{decision.target} {decision.model}: {decision.action} {replicas}, "
        f"data {decision.state}: {decision.reason}{outcome}"
    )


class AuditLog:
    """Appends every record to a file, and writes it through at once."""

    def __init__(self, path: Path, config_digest: str) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        self._digest = config_digest
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the audit file {path}: {error.strerror}") from None

    def __call__(self, record: Record) -> None:
        """Write a record; if that fails, say so, since scaling must go on with a full disk."""
        try:
            self._file.write(as_line(record, self._digest) + "\n")
            self._file.flush()
        except OSError as error:
            log.error("not audited", target=str(record.decision.target), error=str(error))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
