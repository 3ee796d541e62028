"""The autoscaler's own metrics and health, over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from growpage.budget.errors import ConfigError
from growpage.fleet.controller import Record, Round
from growpage.fleet.decision import Action, DataState

_LABELS = ("namespace", "model_name", "target")


class FleetMetrics:
    """What Prometheus may know of the autoscaler, in a registry of its own.

    ``growpage_desired_replicas`` is absent for a model while its data are STALE, ABSENT or INVALID.
    An HPA or KEDA that finds no value leaves the replicas alone; the last value kept would make
    them undo what an operator does by hand in the meantime, on data that nobody has.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seen: set[tuple[str, str, str]] = set()
        self._desired = Gauge(
            "growpage_desired_replicas",
            "Replicas that the model's target should have; absent while that is not known.",
            _LABELS,
            registry=self.registry,
        )
        self._current = Gauge(
            "growpage_autoscaler_current_replicas",
            "Replicas that the model's target asks for now; absent while that is not known.",
            _LABELS,
            registry=self.registry,
        )
        self._state = Gauge(
            "growpage_autoscaler_data_state",
            "1 for the state of the data behind the last decision, 0 for the others.",
            (*_LABELS, "state"),
            registry=self.registry,
        )
        self._decisions = Counter(
            "growpage_autoscaler_decisions",
            "Decisions, by action.",
            (*_LABELS, "action"),
            registry=self.registry,
        )
        self._scale_errors = Counter(
            "growpage_autoscaler_scale_errors",
            "Times that the target was to be scaled and was not.",
            _LABELS,
            registry=self.registry,
        )
        self._success = Gauge(
            "growpage_autoscaler_last_success_timestamp_seconds",
            "When a decision was last taken from fresh data, by this machine's clock.",
            _LABELS,
            registry=self.registry,
        )
        self._query_errors = Counter(
            "growpage_autoscaler_query_errors",
            "Rounds in which Prometheus could not be asked.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "growpage_autoscaler_round_duration_seconds",
            "Time that a round takes.",
            registry=self.registry,
        )

    def record(self, record: Record) -> None:
        """Count a decision."""
        decision = record.decision
        labels = _labels_of(record)
        self._seen.add(labels)
        self._decisions.labels(*labels, str(decision.action)).inc()
        for state in DataState:
            self._state.labels(*labels, str(state)).set(state is decision.state)
        self._scale_errors.labels(*labels).inc(bool(record.error))
        trusted = decision.state in (DataState.FRESH, DataState.PARTIAL)
        # Below its minimum a target is lifted whatever the data say.
        known = trusted or decision.action is not Action.NO_ACTION
        _set_or_remove(self._desired, labels, decision.desired if known else None)
        _set_or_remove(self._current, labels, decision.current)
        if decision.state is DataState.FRESH:
            self._success.labels(*labels).set(time.time())

    def record_round(self, done: Round, seconds: float) -> None:
        """Count a round, and how long it took."""
        self._seconds.observe(seconds)
        if done.unreachable:
            self._query_errors.inc()
        self._keep_only({_labels_of(record) for record in done.records})

    def record_failure(self) -> None:
        """A round broke off: nothing is known, and nobody may follow what was said before."""
        self._keep_only(set())

    def _keep_only(self, seen: set[tuple[str, str, str]]) -> None:
        for gone in self._seen - seen:
            _set_or_remove(self._desired, gone, None)
            _set_or_remove(self._current, gone, None)
            for state in DataState:  # or a model that is gone would be said to hold for ever
                _set_or_remove(self._state, (*gone, str(state)), None)
        self._seen = seen


def _labels_of(record: Record) -> tuple[str, str, str]:
    decision = record.decision
    return decision.target.namespace, decision.model, decision.target.name


def _set_or_remove(gauge: Gauge, labels: tuple[str, ...], value: int | None) -> None:
    if value is not None:
        gauge.labels(*labels).set(value)
    else:
        with suppress(KeyError):  # older versions raise where there is none
            gauge.remove(*labels)


class Health:
    """Whether the loop turns, for the probes."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: seconds after which a loop that does not come round is dead, and a clock."""
        self._patience = patience
        self._clock = clock
        self._begun = clock()
        self._round: float | None = None

    def beat(self) -> None:
        """A round is over, whatever it found: an autoscaler that holds is well."""
        self._round = self._clock()

    @property
    def alive(self) -> bool:
        """Whether a round ended lately."""
        return self._clock() - (self._round or self._begun) <= self._patience

    @property
    def ready(self) -> bool:
        """Whether the first round is over, so that the metrics say something."""
        return self._round is not None and self.alive


class TelemetryServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread of its own."""

    def __init__(self, host: str, port: int, metrics: FleetMetrics, health: Health) -> None:
        """Listen.

        Raises:
            ConfigError: the address is taken, or not ours.
        """
        exposition = make_wsgi_app(metrics.registry)

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path == "/metrics":
                return exposition(environ, start_response)  # type: ignore[no-any-return]
            probes = {"/healthz": health.alive, "/readyz": health.ready}
            status = {True: "200 OK", False: "503 Service Unavailable", None: "404 Not Found"}[
                probes.get(path)
            ]
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{status.partition(' ')[2]}\n".encode()]

        try:
            self._server = make_server(
                host, port, application, server_class=_Server, handler_class=_QuietHandler
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="telemetry", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """A slow scraper must not stand in the way of a probe."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Does not write a line for every scrape."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
