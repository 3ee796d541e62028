"""KEDA's external scaler: the decisions over gRPC, and an error where there is none.

KEDA asks for a metric, and its HPA for as many replicas as the metric's value divided by the
target size, rounded up. The value is the number of replicas that was decided and the target size
1, so the HPA asks for exactly what was decided. Without data the answer is an error and never 0:
on an error the HPA keeps the replicas, on a 0 it would take all of them away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc
import structlog

from growpage.fleet.decision import DataState, Decision
from growpage.fleet.keda.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)

METRIC_NAME = "growpage-desired-replicas"

TARGET_KEY = "target"
"""Key of the trigger's metadata that names the target; by default the ScaledObject's name does."""

SERVICE = "externalscaler.ExternalScaler"

ACTIVITY_SECONDS = 5.0
"""How often an open stream looks whether there still is a decision."""

Source = Callable[[str, str], Decision | None]
"""The latest decision for a target, by its namespace and name; None if there is none that is
recent enough to be acted on."""

log = structlog.get_logger(__name__)


class NoDecisionError(Exception):
    """There is nothing to tell KEDA; the message says why."""


def desired_replicas(source: Source, scaled_object: ScaledObjectRef) -> int:
    """What the ScaledObject's target should have.

    Raises:
        NoDecisionError: there is no decision, or none that the data allow to act on.
    """
    name = scaled_object.scalerMetadata.get(TARGET_KEY, "") or scaled_object.name
    decision = source(scaled_object.namespace, name)
    if decision is None:
        raise NoDecisionError(
            f"no recent decision for {name!r} in namespace {scaled_object.namespace!r}: if the "
            f"autoscaler does not know it by this name, set `{TARGET_KEY}` in the metadata of the "
            f"trigger to the name of the Deployment or StatefulSet"
        )
    usable = decision.state is DataState.FRESH or (
        decision.state is DataState.PARTIAL
        and decision.desired is not None
        and decision.current is not None
        and decision.desired >= decision.current  # partial data never scale in
    )
    if not usable or decision.desired is None or decision.desired < 1:
        raise NoDecisionError(f"the data are {decision.state}: {decision.reason}")
    return decision.desired


class _Service:
    """The four calls of the protocol."""

    def __init__(self, source: Source, activity_seconds: float) -> None:
        self._source = source
        self._activity_seconds = activity_seconds

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server is given; written out, so that no stub is tied to a version of grpcio."""

        def unary(method: Callable[..., Any], request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method, request.FromString, response.SerializeToString
            )

        stream = grpc.unary_stream_rpc_method_handler(
            self.stream_is_active, ScaledObjectRef.FromString, IsActiveResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self.is_active, ScaledObjectRef, IsActiveResponse),
                "StreamIsActive": stream,
                "GetMetricSpec": unary(
                    self.get_metric_spec, ScaledObjectRef, GetMetricSpecResponse
                ),
                "GetMetrics": unary(self.get_metrics, GetMetricsRequest, GetMetricsResponse),
            },
        )

    async def is_active(self, request: ScaledObjectRef, context: Any) -> IsActiveResponse:
        """Always, while there is a decision: an inactive target would be scaled to nothing."""
        await self._desired(request, context)
        return IsActiveResponse(result=True)

    async def stream_is_active(
        self, request: ScaledObjectRef, context: Any
    ) -> AsyncIterator[IsActiveResponse]:
        """Says so once, and ends in an error when there is no decision any more."""
        await self._desired(request, context)
        yield IsActiveResponse(result=True)
        while True:
            await asyncio.sleep(self._activity_seconds)
            await self._desired(request, context)

    async def get_metric_spec(
        self, request: ScaledObjectRef, context: Any
    ) -> GetMetricSpecResponse:
        """A constant: it does not depend on data, so it never fails."""
        spec = MetricSpec(metricName=METRIC_NAME, targetSize=1, targetSizeFloat=1.0)
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(self, request: GetMetricsRequest, context: Any) -> GetMetricsResponse:
        """The number of replicas that was decided."""
        desired = await self._desired(request.scaledObjectRef, context)
        value = MetricValue(
            metricName=METRIC_NAME, metricValue=desired, metricValueFloat=float(desired)
        )
        return GetMetricsResponse(metricValues=[value])

    async def _desired(self, scaled_object: ScaledObjectRef, context: Any) -> int:
        try:
            return desired_replicas(self._source, scaled_object)
        except NoDecisionError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise  # abort has raised already


class KedaScaler:
    """Serves decisions to KEDA inside a ``with`` block, from a thread of its own.

    The port has no authentication: a NetworkPolicy is to keep it for KEDA. A stream stays open for
    each ScaledObject with an ``external-push`` trigger, and holds no thread.

    Args:
        source: the decisions; called in the server's thread, so it must not block.
        address: where to listen, such as ``0.0.0.0:6000``; port 0 takes any free one.
        activity_seconds: how often an open stream looks whether there still is a decision.

    Raises:
        OSError: on entering, if the address cannot be listened on.
    """

    def __init__(
        self,
        source: Source,
        *,
        address: str = "0.0.0.0:6000",
        activity_seconds: float = ACTIVITY_SECONDS,
    ) -> None:
        self._service = _Service(source, activity_seconds)
        self._address = address
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keda-scaler", daemon=True)
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self.port = 0
        """The port that it listens on."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise OSError(f"cannot listen on {self._address}: {self._failure}") from self._failure
        log.info("KEDA scaler listens", address=self._address, port=self.port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        # Otherwise a second server on the port would take a share of the calls, unnoticed.
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self._service.handler(),))
        self.port = server.add_insecure_port(self._address)
        await server.start()
        self._started.set()
        await self._end.wait()
        await server.stop(grace=1.0)
