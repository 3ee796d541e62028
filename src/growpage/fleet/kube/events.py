"""Kubernetes Events on the targets: what was done, what was held back, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from kubernetes import client

from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.kube.api import FIELD_MANAGER, Permission, explained
from growpage.fleet.kube.scale import read_scale
from growpage.fleet.targets import ScaleError, Target

CREATE_EVENTS = Permission("events.k8s.io", "events", "create")

REPEAT_SECONDS = 600.0
"""The same thing is said of a target again only after so long."""
BURST = 25
REFILL_SECONDS = 300.0
"""At most so many events of a target at once, and one more for each so many seconds: the limits of
Kubernetes' own recorder."""

NOTE_LIMIT = 1024
"""The API's, in bytes."""

log = structlog.get_logger(__name__)


@dataclass
class _Budget:
    """What may be said of one target."""

    tokens: float
    since: float
    last: str = ""
    last_at: float = float("-inf")


class EventRecorder:
    """Records decisions as Events on their targets, if it can; it never raises.

    Args:
        api: see :func:`growpage.fleet.kube.api.connect`.
        instance: of this autoscaler: the name of its pod.
        speaks: whether it is this autoscaler's to say; one that stands by has nothing to report.
        clock: seconds, only ever growing.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        instance: str,
        speaks: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._instance = instance
        self._speaks = speaks
        self._clock = clock
        self._budgets: dict[Target, _Budget] = {}

    def record(self, decision: Decision, *, refused: ScaleError | None = None) -> bool:
        """Record what was done about a decision; whether an Event was created.

        Args:
            decision: a decision that was carried out, or that nothing was to be done about. When
                nothing is to be done and the data are fresh, there is nothing to say.
            refused: why it was not carried out after all.
        """
        reason = event_reason(decision, refused is not None)
        if reason is None or not self._speaks() or not self._may_say(decision, reason):
            return False
        note = decision.reason if refused is None else f"{refused} (decided: {decision.reason})"
        try:
            self._create(decision, reason, note, warning=refused is not None or _holds(decision))
        except ScaleError as error:
            log.warning("event not created", target=str(decision.target), error=str(error))
            return False
        return True

    def _may_say(self, decision: Decision, reason: str) -> bool:
        now = self._clock()
        budget = self._budgets.setdefault(decision.target, _Budget(BURST, now))
        budget.tokens = min(BURST, budget.tokens + (now - budget.since) / REFILL_SECONDS)
        budget.since = now
        # Each scaling is news; a hold goes on with every look at the data.
        said = reason if decision.action is Action.NO_ACTION else f"{reason} {decision.desired}"
        carried_out = reason in ("ScaledOut", "ScaledIn")
        if not carried_out and said == budget.last and now - budget.last_at < REPEAT_SECONDS:
            return False
        if budget.tokens < 1:
            return False
        budget.tokens -= 1
        budget.last, budget.last_at = said, now
        return True

    def _create(self, decision: Decision, reason: str, note: str, *, warning: bool) -> None:
        target, now = decision.target, datetime.now(UTC)
        event = client.EventsV1Event(
            api_version="events.k8s.io/v1",
            kind="Event",
            metadata=client.V1ObjectMeta(
                generate_name=f"{target.name}.", namespace=target.namespace
            ),
            # The API refuses a time without a fraction.
            event_time=now.replace(microsecond=now.microsecond or 1),
            type="Warning" if warning else "Normal",
            reason=reason,
            action=decision.action.value,
            note=_shortened(f"{decision.model}: {note}"),
            reporting_controller=FIELD_MANAGER,
            reporting_instance=self._instance,
            regarding=client.V1ObjectReference(
                api_version="apps/v1",
                kind=target.kind,
                namespace=target.namespace,
                name=target.name,
                # `kubectl describe` shows only events that name it.
                uid=read_scale(self._api, target).uid,
            ),
        )
        with explained(f"create an Event on {target}", CREATE_EVENTS, target.namespace):
            client.EventsV1Api(self._api).create_namespaced_event(target.namespace, event)


def event_reason(decision: Decision, refused: bool = False) -> str | None:
    """The reason of the Event, a word for machines; None if there is nothing to say."""
    match decision.action:
        case Action.SCALE_OUT:
            return "ScaleOutRefused" if refused else "ScaledOut"
        case Action.SCALE_IN:
            return "ScaleInRefused" if refused else "ScaledIn"
        case Action.NO_ACTION:
            return f"HeldOn{decision.state.value.title()}Data" if _holds(decision) else None


def _holds(decision: Decision) -> bool:
    return decision.action is Action.NO_ACTION and decision.state is not DataState.FRESH


def _shortened(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= NOTE_LIMIT:
        return note
    return encoded[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
