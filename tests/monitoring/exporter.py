"""An HTTP exporter with every metric of the catalogue, whose values a test sets.

It stands for servers in states that a healthy one cannot be brought into.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from growpage.telemetry.catalogue import ENGINE_LABELS, METRICS, Kind, Metric

VLLM = (
    Metric("vllm:kv_cache_usage_perc", Kind.GAUGE, "ratio", "As vLLM's."),
    Metric("vllm:num_preemptions", Kind.COUNTER, "requests", "As vLLM's."),
    Metric("vllm:num_requests_running", Kind.GAUGE, "requests", "As vLLM's."),
    Metric(
        "vllm:num_requests_waiting_by_reason", Kind.GAUGE, "requests", "As vLLM's.", ("reason",)
    ),
)
"""Those of vLLM's that the rules look at."""


class Exporter:
    """Serves what it is told, until it is stopped; it can be started again at its address."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._metrics = {metric.name: self._make(metric) for metric in (*METRICS, *VLLM)}
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen."""
        self._server, self._thread = start_http_server(self._port, "127.0.0.1", self._registry)
        self._port = self._server.server_port

    def stop(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def gauge(self, model: str, name: str, value: float, **labels: str) -> None:
        """Set a gauge of a model's engine."""
        self._of(model, name, labels).set(value)

    def count(self, model: str, name: str, number: float = 1, **labels: str) -> None:
        """Increase a counter of a model's engine."""
        self._of(model, name, labels).inc(number)

    def observe(self, model: str, name: str, value: float, times: int, **labels: str) -> None:
        """Add a value to a histogram of a model's engine, several times."""
        for _ in range(times):
            self._of(model, name, labels).observe(value)

    def _of(self, model: str, name: str, labels: dict[str, str]) -> Any:
        return self._metrics[name].labels(model_name=model, engine="0", **labels)

    def _make(self, metric: Metric) -> Counter | Gauge | Histogram:
        labels = (*ENGINE_LABELS, *metric.labels)
        match metric.kind:
            case Kind.COUNTER:
                return Counter(metric.name, metric.help, labels, registry=self._registry)
            case Kind.GAUGE:
                return Gauge(metric.name, metric.help, labels, registry=self._registry)
            case Kind.HISTOGRAM:
                return Histogram(
                    metric.name,
                    metric.help,
                    labels,
                    registry=self._registry,
                    buckets=metric.buckets,
                )
