"""Leader election on a Lease: of several autoscalers exactly one acts.

Who holds the Lease is decided by the official client's election. What that does not have is here:
a thread that renews and can be stopped, a deadline that also counts while the API hangs, giving
the Lease up at the end, and the question that must precede each change: do I hold it now?
"""

from __future__ import annotations

import threading
import time
from secrets import token_hex
from types import TracebackType
from typing import Self

import structlog
from kubernetes import client
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from growpage.fleet.kube.api import Permission, explained
from growpage.fleet.targets import ScaleError

GROUP = "coordination.k8s.io"
LEASES = tuple(Permission(GROUP, "leases", verb) for verb in ("get", "create", "update"))
"""What the election takes."""

LEASE_SECONDS = 15
RENEW_DEADLINE_SECONDS = 10
RETRY_SECONDS = 2
"""These three are the defaults of Kubernetes' own controllers."""

log = structlog.get_logger(__name__)


class LeadershipLostError(ScaleError):
    """This autoscaler may not act: it does not hold the Lease."""


class Leadership:
    """Takes part in the election, in a thread of its own, inside a ``with`` block.

    A leader that is cut off from the API stops taking itself for one after the renewal deadline,
    which is before the Lease expires and another takes it.

    Args:
        api: see :func:`growpage.fleet.kube.api.connect`.
        namespace: of the Lease.
        name: of the Lease; autoscalers with the same one elect among themselves.
        identity: of this autoscaler, for people: the name of its pod. Something is added to tell
            it from any other, also from an earlier one in the same pod.
        lease_seconds: after so long without a renewal another may take the Lease.
        renew_deadline_seconds: after so long without one the holder stops acting.
        retry_seconds: time between two attempts.

    Raises:
        ValueError: the times do not fit each other.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_seconds: int = LEASE_SECONDS,
        renew_deadline_seconds: int = RENEW_DEADLINE_SECONDS,
        retry_seconds: int = RETRY_SECONDS,
    ) -> None:
        # The library's own check of these ends the process.
        if not 1 <= retry_seconds * 1.2 < renew_deadline_seconds < lease_seconds:
            raise ValueError(
                f"lease_seconds is {lease_seconds}, renew_deadline_seconds "
                f"{renew_deadline_seconds} and retry_seconds {retry_seconds}, but the lease must "
                f"be longer than the deadline, and the deadline than 1.2 retries of at least 1 s"
            )
        self.identity = f"{identity}_{token_hex(4)}"
        self._api = api
        self._lock = _Lock(api, name, namespace, self.identity)
        self._where = f"Lease {namespace}/{name}"
        self._renew_deadline_s = renew_deadline_seconds
        self._retry_s = retry_seconds
        self._election = LeaderElection(
            Config(
                self._lock,
                lease_duration=lease_seconds,
                renew_deadline=renew_deadline_seconds,
                retry_period=retry_seconds,
                onstarted_leading=_nothing,
                onstopped_leading=_nothing,
            )
        )
        self._held_until = 0.0
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="leader-election", daemon=True)

    def __enter__(self) -> Self:
        self.attempt()  # so that what runs but once may act at once
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.release()

    @property
    def leads(self) -> bool:
        """Whether the Lease was held and renewed in time, as far as known here."""
        return time.monotonic() < self._held_until

    def confirm(self) -> None:
        """Make sure that this autoscaler leads, by asking the server.

        Raises:
            LeadershipLostError: it does not, or not any more.
            ScaleError: the Lease cannot be read.
        """
        self._check_deadline()
        coordination = client.CoordinationV1Api(self._api)
        with explained(f"read {self._where}", LEASES[0], self._lock.namespace):
            lease = coordination.read_namespaced_lease(self._lock.name, self._lock.namespace)
        holder = lease.spec.holder_identity if lease.spec else None
        if holder != self.identity:
            self._held_until = 0.0
            raise LeadershipLostError(
                f"{self.identity} does not lead: {self._where} is held by {holder or 'nobody'}"
            )
        self._check_deadline()  # the answer may have been long in coming

    def attempt(self) -> bool:
        """Take the Lease, or renew it; whether it is held. Called by the thread, or alone."""
        with self._turn:
            begin = time.monotonic()
            led = self.leads
            try:
                held = bool(self._election.try_acquire_or_renew())
            except Exception as error:  # whatever it is, the next attempt may do better
                log.warning("lease unreachable", lease=self._where, error=str(error))
                return self.leads
            if held:
                # Counted from before the call: the server may have renewed it then.
                self._held_until = begin + self._renew_deadline_s
            elif self._other_holder():
                self._held_until = 0.0
            if led != self.leads:
                log.info("leadership changed", lease=self._where, leads=self.leads)
            return self.leads

    def release(self) -> None:
        """Give the Lease up, so that another need not wait for it to expire. Best effort."""
        with self._turn:
            self._held_until = 0.0
            try:
                found, record = self._lock.get(self._lock.name, self._lock.namespace)
                if found and record.holder_identity == self.identity:
                    # As client-go does: a Lease that nobody holds can be taken at once.
                    nobody = LeaderElectionRecord("", "1", record.acquire_time, record.renew_time)
                    self._lock.update(self._lock.name, self._lock.namespace, nobody)
            except Exception as error:  # it expires by itself
                log.warning("lease not released", lease=self._where, error=str(error))

    def _keep(self) -> None:
        while not self._ended.wait(self._retry_s):
            self.attempt()

    def _check_deadline(self) -> None:
        if not self.leads:
            raise LeadershipLostError(
                f"{self.identity} does not lead: it has not held or renewed {self._where} in the "
                f"last {self._renew_deadline_s} s"
            )

    def _other_holder(self) -> bool:
        record = self._election.observed_record
        return record is not None and record.holder_identity not in ("", self.identity)


class _Lock(LeaseLock):
    """The library's lock, through our client instead of the process's default one."""

    def __init__(self, api: client.ApiClient, name: str, namespace: str, identity: str) -> None:
        super().__init__(name, namespace, identity)
        self.api_instance = client.CoordinationV1Api(api)


def _nothing() -> None:
    """What the library calls in a loop of its own that is not used here."""
