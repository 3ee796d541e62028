"""The files by which engine processes tell the servers beside them what they hold.

Each engine keeps one file, ``engine-<index>.json``, in a folder that is private to the deployment.
A file is replaced as a whole, so readers need no lock and the engine never waits for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from growpage.telemetry.snapshot import LiveState, Snapshot

STALE_AFTER_S = 10.0
"""Seconds without a snapshot after which an engine that has work counts as stuck."""

_SNAPSHOT = TypeAdapter(Snapshot)
_LIVE_STATE = TypeAdapter(LiveState)


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Put ``snapshot`` in the place of its engine's last one, readable by this user only.

    Figures that JSON has no word for, infinite ones and NaN, are written as null, and characters
    that UTF-8 has no place for as question marks.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = folder / f"engine-{snapshot['engine']}.json"
    partial = target.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_encoded(snapshot))
    partial.replace(target)
    return target


def read_snapshots(folder: Path) -> list[Snapshot]:
    """The last snapshot of every engine, by index; files that hold none are left out."""
    return _read(folder)[0]


def read_state(folder: Path, now: float) -> LiveState:
    """What the live page is told at the Unix time ``now``."""
    snapshots, unreadable = _read(folder)
    return {"time": now, "engines": snapshots, "unreadable": unreadable}


def parse_state(content: bytes) -> LiveState:
    """What a server answered.

    Raises:
        ValueError: it is no state of engines, or that of another version.
    """
    return _LIVE_STATE.validate_json(content)


def age(snapshot: Snapshot, now: float) -> float:
    """Seconds since the engine wrote ``snapshot``; 0 if its clock is ahead."""
    return max(0.0, now - snapshot["time"])


def oldest_age(snapshots: Iterable[Snapshot], now: float) -> float | None:
    """Age of the oldest snapshot in seconds; none without snapshots."""
    return max((age(snapshot, now) for snapshot in snapshots), default=None)


def is_stale(snapshot: Snapshot, now: float) -> bool:
    """Whether the engine should have written since: one without work writes nothing."""
    busy = snapshot["running"] > 0 or snapshot["waiting"] > 0
    return busy and age(snapshot, now) > STALE_AFTER_S


def _encoded(snapshot: Snapshot) -> bytes:
    try:
        return to_json(snapshot, inf_nan_mode="null")
    except ValueError:  # half a surrogate pair, in an id that a client chose
        plain = json.dumps(snapshot, ensure_ascii=False).encode("utf-8", "replace")
        return to_json(from_json(plain), inf_nan_mode="null")


def _read(folder: Path) -> tuple[list[Snapshot], list[str]]:
    snapshots, unreadable = [], []
    for path in folder.glob("engine-*.json"):
        try:
            snapshots.append(_SNAPSHOT.validate_json(path.read_bytes()))
        except FileNotFoundError:
            continue  # removed since the folder was listed
        except (OSError, ValidationError):
            unreadable.append(path.name)
    return sorted(snapshots, key=lambda snapshot: snapshot["engine"]), sorted(unreadable)
