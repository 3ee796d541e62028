"""A pod as Prometheus sees it: an HTTP server with vLLM's metric names, and values of a test."""

from __future__ import annotations

from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class Exporter:
    """Exports what vLLM 0.32 does of one engine or more, on a port of its own.

    With ``openmetrics`` it does so in the format that Prometheus prefers, in which the library
    spells the names `vllm_...`.
    """

    def __init__(self, model: str = "smol", *, engines: int = 1, openmetrics: bool = False) -> None:
        registry = CollectorRegistry()
        labels = ("model_name", "engine")
        self._gauges = {
            name: Gauge(name, name, labels, registry=registry)
            for name in (
                "vllm:kv_cache_usage_perc",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
            )
        }
        self._reasons = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "vllm:num_requests_waiting_by_reason",
            (*labels, "reason"),
            registry=registry,
        )
        self._preemptions = Counter("vllm:num_preemptions", "-", labels, registry=registry)
        self._model = model
        self._engines = [str(number) for number in range(engines)]
        self.set()
        exposition = make_wsgi_app(registry)

        def application(environ: dict[str, Any], start_response: Any) -> Any:
            if not openmetrics:
                del environ["HTTP_ACCEPT"]
            return exposition(environ, start_response)

        self._server = make_server(
            "127.0.0.1", 0, application, server_class=_Server, handler_class=_Quiet
        )
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def set(
        self, *, usage: float = 0.0, running: int = 0, waiting: int = 0, deferred: int = 0
    ) -> None:
        for engine in self._engines:
            values = (usage, running, waiting + deferred)
            for gauge, value in zip(self._gauges.values(), values, strict=True):
                gauge.labels(self._model, engine).set(value)
            self._reasons.labels(self._model, engine, "capacity").set(waiting)
            self._reasons.labels(self._model, engine, "deferred").set(deferred)
            self._preemptions.labels(self._model, engine)

    def preempt(self) -> None:
        self._preemptions.labels(self._model, self._engines[0]).inc()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
