"""The cluster as the autoscaler sees it: replicas, cold starts, and the one change it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

import structlog
from kubernetes import client

from growpage.fleet.kube.drain import (
    SETTLE_SECONDS,
    marked,
    obstacles,
    pods_to_mark,
)
from growpage.fleet.kube.ownership import owner
from growpage.fleet.kube.pods import Pod, cold_starts, list_pods, percentile90
from growpage.fleet.kube.scale import Scale, patch_scale, read_scale
from growpage.fleet.targets import Replicas, ScaleError, Target

REMEMBERED_STARTS = 50
"""Cold starts kept for each target, those of pods that are gone too."""

log = structlog.get_logger(__name__)


class Drain(StrEnum):
    """What to do about a scale-in that would abort requests."""

    REQUIRE = "require"
    """Refuse it."""
    WARN = "warn"
    """Log why, and do it."""


class KubernetesCluster:
    """Targets in Kubernetes, through the official client.

    Whatever goes wrong is a :class:`~growpage.fleet.targets.ScaleError` that says why, and is
    not tried again: the next decision is taken from what is the case then.

    Args:
        api: see :func:`growpage.fleet.kube.api.connect`.
        confirm_leader: called before every change; raises ``ScaleError`` when this autoscaler
            may not act. See :meth:`growpage.fleet.kube.leader.Leadership.confirm`.
        running: running requests of a target by the name of the pod, for choosing the pods that
            leave a Deployment. Without it Kubernetes chooses, and no pod is ever written to.
        drain: what to do when a scale-in would abort requests.
        settle_seconds: how long a scale-in waits for the chosen pods to be deleted.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        confirm_leader: Callable[[], None] = lambda: None,
        running: Callable[[Target], Mapping[str, float]] | None = None,
        drain: Drain = Drain.REQUIRE,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._api = api
        self._confirm_leader = confirm_leader
        self._running = running
        self._drain = drain
        self._settle_seconds = settle_seconds
        self._starts: defaultdict[Target, dict[str, float]] = defaultdict(dict)

    def replicas(self, target: Target) -> Replicas:
        """How many replicas the target has now. Terminating and finished pods are none.

        Raises:
            ScaleError: the scale or the pods cannot be read.
        """
        scale = read_scale(self._api, target)
        pods = list_pods(self._api, target, scale.selector)
        self._remember_starts(target, pods)
        live = [pod for pod in pods if pod.live]
        ready = sum(pod.ready for pod in live)
        return Replicas(
            desired=scale.replicas,
            ready=ready,
            pending=len(live) - ready,
            pods=tuple(sorted(pod.name for pod in live)),
        )

    def cold_start_seconds(self, target: Target) -> float | None:
        """The 90th percentile of creation to ready, of the pods that :meth:`replicas` has seen.

        None if none of them was ready without a restart.

        Raises:
            ScaleError: the scale or the pods cannot be read.
        """
        if not self._starts[target]:
            self.replicas(target)
        return percentile90(list(self._starts[target].values()))

    def owner(self, target: Target) -> str | None:
        """The other controller that scales the target, such as ``ScaledObject chat``, if any.

        Raises:
            ScaleError: it cannot be found out.
        """
        return owner(self._api, target)

    def obstacles_to_draining(self, target: Target) -> list[str]:
        """Why a scale-in would abort requests, one sentence for each reason.

        Raises:
            ScaleError: the scale or the pods cannot be read.
        """
        scale = read_scale(self._api, target)
        pods = list_pods(self._api, target, scale.selector)
        return obstacles(pod for pod in pods if pod.live)

    def scale(self, target: Target, replicas: int, *, expected: int) -> None:
        """Ask for so many replicas, if the target still asks for ``expected``.

        Raises:
            ScaleError: another controller owns the target, it was changed meanwhile, requests
                would be aborted, the leadership is lost, a permission is missing, or the API does
                not answer; in the last case it may have been done.
        """
        if replicas < 0:
            raise ScaleError(f"cannot scale {target} to {replicas}: replicas are 0 or more")
        if other := owner(self._api, target):
            raise ScaleError(
                f"cannot scale {target}: {other} scales it already; two controllers would fight, "
                f"so delete one, or let it read the gauge growpage_desired_replicas"
            )
        # Read before the leadership is confirmed: had a new leader acted since, the version that
        # the patch carries would be out of date, and the patch refused.
        seen = read_scale(self._api, target)
        if seen.replicas != expected:
            raise ScaleError(
                f"cannot scale {target} to {replicas}: changed meanwhile, it asks for "
                f"{seen.replicas} replicas, not for {expected} as when this was decided"
            )
        if replicas == expected:
            return
        leaving = expected - replicas
        with self._draining(target, seen, leaving) if leaving > 0 else nullcontext():
            self._confirm_leader()
            patch_scale(self._api, target, seen, replicas)

    def _draining(self, target: Target, seen: Scale, leaving: int) -> AbstractContextManager[None]:
        """What a scale-in happens inside of, once it is known that requests can finish."""
        pods = list_pods(self._api, target, seen.selector)
        reasons = obstacles(pod for pod in pods if pod.live)
        if reasons and self._drain is Drain.REQUIRE:
            raise ScaleError(f"cannot scale {target} in: {'; '.join(reasons)}")
        for reason in reasons:
            log.warning("scaling in aborts requests", target=str(target), reason=reason)
        # A StatefulSet always deletes its highest ordinals, whatever their cost.
        if self._running is None or target.kind != "Deployment":
            return nullcontext()
        chosen = pods_to_mark(pods, leaving, self._running(target))
        self._confirm_leader()
        return marked(self._api, target, seen.selector, pods, chosen, self._settle_seconds)

    def _remember_starts(self, target: Target, pods: list[Pod]) -> None:
        starts, now = self._starts[target], cold_starts(pods)
        for uid, seconds in now.items():
            starts[uid] = min(seconds, starts.get(uid, seconds))
        for uid in list(starts)[: -max(REMEMBERED_STARTS, len(now))]:
            del starts[uid]
