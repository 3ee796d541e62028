"""The pods of a target: what the autoscaler wants to know of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil

from kubernetes import client

from growpage.fleet.kube.api import Permission, explained
from growpage.fleet.targets import Target

LIST_PODS = Permission("", "pods", "list")

PAGE = 500
"""Pods in one answer of the API."""

DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' default of ``terminationGracePeriodSeconds``."""


@dataclass(frozen=True)
class Container:
    """What a container runs."""

    image: str
    words: tuple[str, ...]
    """Its ``command`` and ``args``."""
    has_command: bool
    """Whether it says what to run itself; if not, the image does."""
    pre_stop_sleep: int = 0
    """Seconds that its preStop hook sleeps; 0 for any other hook."""


@dataclass(frozen=True)
class Pod:
    """One pod, at one moment."""

    name: str
    uid: str
    created: datetime
    terminating: bool = False
    finished: bool = False
    ready_since: datetime | None = None
    """When it last became ready; none if it is not."""
    restarts: int = 0
    grace_seconds: int = DEFAULT_GRACE_SECONDS
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()

    @property
    def live(self) -> bool:
        """Whether it counts as a replica."""
        return not (self.terminating or self.finished)

    @property
    def ready(self) -> bool:
        """Whether it serves."""
        return self.live and self.ready_since is not None


def list_pods(api: client.ApiClient, target: Target, selector: str) -> list[Pod]:
    """Every pod that the selector finds, those that are terminating too.

    Raises:
        ScaleError: they cannot be listed.
    """
    core = client.CoreV1Api(api)
    pods: list[Pod] = []
    more: str | None = None
    with explained(f"list the pods of {target}", LIST_PODS, target.namespace):
        while True:
            page = core.list_namespaced_pod(
                target.namespace, label_selector=selector, limit=PAGE, _continue=more
            )
            pods += map(_read, page.items)
            more = page.metadata._continue if page.metadata else None
            if not more:
                return pods


def _read(pod: client.V1Pod) -> Pod:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    assert metadata is not None and metadata.creation_timestamp is not None
    conditions = (status.conditions if status else None) or []
    ready = [each for each in conditions if (each.type, each.status) == ("Ready", "True")]
    statuses = (status.container_statuses if status else None) or []
    grace = spec.termination_grace_period_seconds if spec else None
    return Pod(
        name=metadata.name or "",
        uid=metadata.uid or "",
        created=metadata.creation_timestamp,
        terminating=metadata.deletion_timestamp is not None,
        finished=status is not None and status.phase in ("Succeeded", "Failed"),
        ready_since=next((since.last_transition_time for since in ready), None),
        restarts=sum(container.restart_count for container in statuses),
        grace_seconds=DEFAULT_GRACE_SECONDS if grace is None else grace,
        annotations=metadata.annotations or {},
        containers=tuple(map(_container, spec.containers if spec else ())),
    )


def _container(container: client.V1Container) -> Container:
    hook = container.lifecycle.pre_stop if container.lifecycle else None
    return Container(
        image=container.image or "",
        words=(*(container.command or ()), *(container.args or ())),
        has_command=bool(container.command),
        pre_stop_sleep=hook.sleep.seconds if hook and hook.sleep else 0,
    )


def cold_starts(pods: Iterable[Pod]) -> dict[str, float]:
    """Seconds from creation to ready of each ready pod that never restarted, by uid.

    The condition holds the *last* time at which a pod became ready, so a pod whose readiness
    flapped reads too long: of several readings take the least.
    """
    return {
        pod.uid: (pod.ready_since - pod.created).total_seconds()
        for pod in pods
        if pod.live and pod.ready_since is not None and pod.restarts == 0
    }


def percentile90(values: Sequence[float]) -> float | None:
    """The 90th percentile by nearest rank, so one that was measured; None of nothing."""
    if not values:
        return None
    return sorted(values)[ceil(0.9 * len(values)) - 1]
