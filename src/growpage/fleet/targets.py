"""What is scaled, and the cluster that it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["Deployment", "StatefulSet"]


@dataclass(frozen=True, order=True)
class Target:
    """A workload whose replicas serve a model."""

    namespace: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Replicas:
    """How many replicas a target has, at one moment.

    Attributes:
        desired: what its ``spec.replicas`` asks for.
        ready: pods that are ready.
        pending: pods that were created and are not ready yet.
        pods: names of the pods that live, ready or not.
    """

    desired: int
    ready: int
    pending: int
    pods: tuple[str, ...]


class ScaleError(Exception):
    """The target was not scaled; the message says why.

    Such as a conflict with another writer, a missing permission, another controller that owns
    the target, or a leadership that was lost.
    """


class Cluster(Protocol):
    """Where targets live, and the only part of the autoscaler that changes anything."""

    def replicas(self, target: Target) -> Replicas:
        """How many replicas the target has now."""

    def cold_start_seconds(self, target: Target) -> float | None:
        """The 90th percentile of creation to ready over its pods, measured; None if unknown."""

    def scale(self, target: Target, replicas: int, *, expected: int) -> None:
        """Ask for so many replicas, if the target still asks for ``expected``.

        Raises:
            ScaleError: it was not done; the message names the reason.
        """
