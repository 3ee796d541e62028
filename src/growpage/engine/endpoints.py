"""Entry point ``vllm.endpoint_plugins``: growpage's routes in vLLM's OpenAI server."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import State
from vllm.v1.metrics.prometheus import get_prometheus_registry

from growpage.engine.checks import operations_in
from growpage.telemetry.exporter import OwnMetrics
from growpage.telemetry.routes import live_routes
from growpage.telemetry.tenants import TenantMiddleware

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

METRICS_PATH = "/metrics/growpage"


class Endpoints:
    """The routes, and the header by which a request names its tenant."""

    name = "growpage"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add what needs no settings. First in line: vLLM mounts all of ``/metrics.*``."""
        self._app = app
        app.router.routes.insert(0, _route(METRICS_PATH, show_metrics))
        app.add_middleware(TenantMiddleware)

    async def init_state(
        self, engine_client: EngineClient | None, state: State, args: Namespace
    ) -> None:
        """Add the live page, once the server's settings and keys are known."""
        keys = args.api_key or [os.environ.get("VLLM_API_KEY")]
        folder = operations_in(args.additional_config).live
        self._app.router.routes[:0] = live_routes(folder, [key for key in keys if key])


def show_metrics() -> Response:
    """Growpage's metrics alone, of all server processes."""
    own = OwnMetrics(get_prometheus_registry())
    return Response(generate_latest(own), media_type=CONTENT_TYPE_LATEST)  # type: ignore[arg-type]


def _route(path: str, endpoint: object) -> APIRoute:
    return APIRoute(
        path,
        endpoint,  # type: ignore[arg-type]
        methods=["GET"],
        response_model=None,
        include_in_schema=False,
    )
