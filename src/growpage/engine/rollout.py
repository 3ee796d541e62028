"""Follows the rollout file while the engine runs.

A file and not an endpoint: it holds for every engine and API server that sees it, survives a
restart, can be a mounted ConfigMap, and who may change it is the file system's business.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

from vllm.logger import init_logger

from growpage.budget.errors import ConfigError
from growpage.budget.rollout import UNSTAGED, Origin, Rollout

logger = init_logger(f"vllm.{__name__}")

INTERVAL_S = 1.0
"""Seconds between two looks at the file."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class RolloutWatch:
    """The stage in force, and the file that it comes from.

    Args:
        path: the file; none for no rollout at all.
        models: names that the server serves its model under.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the file is not there or wrong. Later such a file changes nothing, and is an
            error in the log.
    """

    def __init__(
        self, path: Path | None, models: frozenset[str], clock: Callable[[], float]
    ) -> None:
        self.path = path
        self._seen = self._stamp()
        self.current = UNSTAGED if path is None else Rollout.from_file(path)
        self._models = models
        self._namespace = _namespace()
        self._clock = clock
        self._next_look = clock() + INTERVAL_S
        if path is not None:
            logger.info("growpage: rollout %s: %s", path, self.current.model_dump_json())

    @property
    def may_observe(self) -> bool:
        """Whether requests may be served as by plain vLLM, now or after a change."""
        return self.path is not None

    def enforces(self, origin: Origin) -> bool:
        """Whether the budget of a request from ``origin`` is enforced now."""
        return self.current.enforces(origin, self._models, self._namespace)

    def look(self) -> bool:
        """Read the file if it has changed, once a second at most; whether the stage is another."""
        if self.path is None or self._clock() < self._next_look:
            return False
        self._next_look = self._clock() + INTERVAL_S
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            new = Rollout.from_file(self.path)
        except ConfigError as error:
            logger.error("growpage: the rollout stays as it is: %s", error)
            return False
        changes = new.changes(self.current)
        if not changes:
            return False
        self.current = new
        logger.info(
            "growpage: rollout changed by %s: %s",
            new.changed_by or f"the owner of {self.path}, {self._owner()}",
            "; ".join(f"{name} was {old}, is {value}" for name, (old, value) in changes.items()),
        )
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes when the file does, also when a mounted ConfigMap turns its link."""
        try:
            found = self.path.stat() if self.path else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_size, found.st_ino)

    def _owner(self) -> str:
        assert self.path is not None
        try:
            uid = self.path.stat().st_uid
        except OSError:
            return "unknown"
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"uid {uid}"


def _namespace() -> str | None:
    """The Kubernetes namespace of this process, or none outside a cluster."""
    if given := os.environ.get("POD_NAMESPACE"):
        return given
    try:
        return NAMESPACE_FILE.read_text().strip() or None
    except OSError:
        return None
