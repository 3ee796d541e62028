"""The loop: a round every interval, until it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from growpage.fleet.controller import Controller, Record, Round
from growpage.fleet.decision import DataState
from growpage.fleet.targets import Target
from growpage.fleet.telemetry import FleetMetrics, Health

log = structlog.get_logger(__name__)

_PATIENCE_ROUNDS = 10
"""A round may take as long as the retries of many queries do; a hung loop takes for ever."""


def patience(interval: float) -> float:
    """Seconds without a round after which the loop counts as dead."""
    return max(120.0, _PATIENCE_ROUNDS * interval)


class StateLog:
    """Says when the data of a model go bad, and when they are good again; not in every round."""

    def __init__(self) -> None:
        self._states: dict[Target, DataState] = {}

    def __call__(self, record: Record) -> None:
        """Say it, if the state is another than in the round before."""
        decision = record.decision
        before = self._states.get(decision.target, DataState.FRESH)
        self._states[decision.target] = decision.state
        if decision.state is before:
            return
        names = {"model": decision.model, "target": str(decision.target)}
        if decision.state is DataState.FRESH:
            log.info("data are good again", **names)
        else:
            log.warning("holding", data=str(decision.state), reason=decision.reason, **names)


def run(
    controller: Controller,
    *,
    interval: float,
    stop: threading.Event,
    metrics: FleetMetrics,
    health: Health,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Decide every ``interval`` seconds until ``stop`` is set. No round ends the loop."""
    troubled = ""
    while not stop.is_set():
        begin = clock()
        done = _round(controller)
        if done is None:
            metrics.record_failure()
        else:
            metrics.record_round(done, clock() - begin)
            if done.unreachable != troubled:
                troubled = done.unreachable
                if troubled:
                    log.warning("holding: Prometheus does not answer", reason=troubled)
                else:
                    log.info("Prometheus answers again")
            health.beat()
        stop.wait(max(0.0, interval - (clock() - begin)))


def _round(controller: Controller) -> Round | None:
    try:
        return controller.run_once()
    except Exception:  # a bug of ours: say so, change nothing, and let /healthz tell in time
        log.exception("the round failed")
        return None
