"""A server on loopback that answers as vLLM's does, with an exporter's metrics; and Prometheus."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx2
from prometheus_client import CONTENT_TYPE_LATEST

from tests.diagnosis.exporter import HEALTHY, LOAD, Exporter, Values
from tests.prometheus_server import PrometheusServer

Answer = tuple[str, str, bytes]
"""Status, content type, body."""


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def listening(app: Callable[..., Iterable[bytes]]) -> Iterator[str]:
    """The address at which ``app`` (WSGI) answers."""
    server = make_server("127.0.0.1", 0, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def vllm_like(
    before: Values | None = None,
    between: Values | None = None,
    *,
    api_key: str | None = None,
    pages: Mapping[str, Answer] | None = None,
    **made: Any,
) -> Iterator[str]:
    """A server whose engine works between any two scrapes; guarded as vLLM guards: ``/v1`` only."""
    exporter = Exporter(**made)
    exporter.apply({**HEALTHY, **(before or {})})
    answers: dict[str, Answer] = {
        "/version": ("200 OK", "application/json", b'{"version": "0.32.0"}'),
        "/v1/models": ("200 OK", "application/json", json.dumps(MODELS).encode()),
        **(pages or {}),
    }

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        key = environ.get("HTTP_AUTHORIZATION")
        if api_key and path.startswith("/v1") and key != f"Bearer {api_key}":
            start("401 Unauthorized", [("Content-Type", "application/json")])
            return [b'{"error": "Unauthorized"}']
        if path == "/metrics" and path not in answers:
            # As vLLM does, whatever the client accepts; prometheus_client would write vllm_... in
            # the OpenMetrics format.
            body = exporter.text().encode()
            exporter.apply({**LOAD, **(between or {})})
            start("200 OK", [("Content-Type", CONTENT_TYPE_LATEST)])
            return [body]
        status, kind, text = answers.get(path, ("404 Not Found", "text/plain", b"no such page"))
        start(status, [("Content-Type", kind)])
        return [text]

    with listening(app) as address:
        yield address


MODELS = {"object": "list", "data": [{"id": "tiny", "max_model_len": 2048}]}


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """A Prometheus that scrapes these addresses every half second."""
    hosts = [target.removeprefix("http://") for target in targets]
    with PrometheusServer(folder, hosts, interval="500ms") as server:
        yield server.url


def wait_for(reached: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            if reached():
                return
        time.sleep(0.1)
    raise TimeoutError(f"not so after {limit_s:g} seconds")
