"""KEDA's external scaler, asked by a gRPC client that is made from the protocol's own file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import grpc
import pytest

from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.keda.scaler import METRIC_NAME, KedaScaler
from growpage.fleet.targets import Target

SRC = Path(__file__).parents[3] / "src"
PROTO = "growpage/fleet/keda/externalscaler.proto"
KEDA_TIMEOUT_S = 10

messages, services = grpc.protos_and_services(PROTO)


class Fleet:
    """The decisions of a test."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, str], Decision] = {}

    def __call__(self, namespace: str, name: str) -> Decision | None:
        return self.decisions.get((namespace, name))

    def decide(
        self,
        desired: int | None,
        *,
        name: str = "chat",
        current: int | None = 3,
        state: DataState = DataState.FRESH,
    ) -> None:
        self.decisions["llm", name] = Decision(
            "qwen",
            Target("llm", "Deployment", name),
            Action.NO_ACTION,
            current,
            desired,
            "no sample in the last 60 s",
            state,
        )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def keda(fleet: Fleet) -> Iterator[Any]:
    """A client, as KEDA is one."""
    with (
        KedaScaler(fleet, address="127.0.0.1:0", activity_seconds=0.05) as scaler,
        grpc.insecure_channel(f"127.0.0.1:{scaler.port}") as channel,
    ):
        yield services.ExternalScalerStub(channel)


def ref(name: str = "chat", **metadata: str) -> Any:
    metadata["scalerAddress"] = "growpage-autoscaler.llm.svc:6000"
    return messages.ScaledObjectRef(name=name, namespace="llm", scalerMetadata=metadata)


def value(keda: Any, scaled_object: Any) -> float:
    request = messages.GetMetricsRequest(scaledObjectRef=scaled_object, metricName=METRIC_NAME)
    (metric,) = keda.GetMetrics(request, timeout=KEDA_TIMEOUT_S).metricValues
    assert metric.metricName == METRIC_NAME
    assert metric.metricValue == metric.metricValueFloat  # older versions of KEDA read the first
    return float(metric.metricValueFloat)


def test_the_metric_is_the_number_of_replicas_with_a_target_of_one(keda: Any, fleet: Fleet) -> None:
    fleet.decide(7)
    assert value(keda, ref()) == 7.0
    (spec,) = keda.GetMetricSpec(ref(), timeout=KEDA_TIMEOUT_S).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC_NAME, 1, 1.0)
    assert keda.IsActive(ref(), timeout=KEDA_TIMEOUT_S).result is True


def hpa(current: int, metric: float, target: float, tolerance: float = 0.1) -> int:
    """What an HPA asks for, given an external metric with a target of AverageValue.

    As GetExternalPerPodMetricReplicas in Kubernetes does.
    """
    ratio = metric / (target * current)
    if 1 - tolerance <= ratio <= 1 + tolerance:
        return current
    return ceil(metric / target)


def test_keda_and_its_hpa_make_of_it_exactly_what_was_decided(keda: Any, fleet: Fleet) -> None:
    (spec,) = keda.GetMetricSpec(ref(), timeout=KEDA_TIMEOUT_S).metricSpecs
    for desired in range(1, 13):
        fleet.decide(desired)
        metric = value(keda, ref())
        for current in range(1, 10):
            assert hpa(current, metric, spec.targetSizeFloat) == desired
        for current in range(10, 30):
            # Where it tolerates a difference of a tenth, as the documents say.
            steps = {desired, current} if abs(desired - current) <= current / 10 else {desired}
            assert hpa(current, metric, spec.targetSizeFloat) in steps
            assert hpa(current, metric, spec.targetSizeFloat, tolerance=0) == desired


@pytest.mark.parametrize("state", [DataState.STALE, DataState.ABSENT, DataState.INVALID])
def test_without_data_every_answer_is_an_error_and_never_0(
    keda: Any, fleet: Fleet, state: DataState
) -> None:
    fleet.decide(3, state=state)
    for ask in (
        lambda: value(keda, ref()),
        lambda: keda.IsActive(ref(), timeout=KEDA_TIMEOUT_S),
        lambda: next(keda.StreamIsActive(ref(), timeout=KEDA_TIMEOUT_S)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            ask()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error.value.details() == f"the data are {state}: no sample in the last 60 s"
    # KEDA counts failures, and so comes to its fallback, only if this one call succeeds.
    assert keda.GetMetricSpec(ref(), timeout=KEDA_TIMEOUT_S).metricSpecs


@pytest.mark.parametrize("desired", [None, 0, -1])
def test_a_decision_without_replicas_is_an_error(
    keda: Any, fleet: Fleet, desired: int | None
) -> None:
    fleet.decide(desired)
    with pytest.raises(grpc.RpcError) as error:
        value(keda, ref())
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_partial_data_are_answered_only_where_they_do_not_scale_in(keda: Any, fleet: Fleet) -> None:
    fleet.decide(5, state=DataState.PARTIAL)
    assert value(keda, ref()) == 5.0
    fleet.decide(3, state=DataState.PARTIAL)
    assert value(keda, ref()) == 3.0
    for current, desired in ((3, 2), (None, 5)):
        fleet.decide(desired, current=current, state=DataState.PARTIAL)
        with pytest.raises(grpc.RpcError) as error:
            value(keda, ref())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_target_that_nobody_decides_for_is_named_with_what_to_do(keda: Any) -> None:
    with pytest.raises(grpc.RpcError) as error:
        value(keda, ref("chat-scaler"))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no recent decision for 'chat-scaler' in namespace 'llm'" in error.value.details()
    assert "set `target` in the metadata of the trigger" in error.value.details()


def test_the_trigger_may_name_the_target(keda: Any, fleet: Fleet) -> None:
    fleet.decide(4)
    assert value(keda, ref("chat-scaler", target="chat")) == 4.0


def test_a_source_that_fails_is_an_error_too(keda: Any, fleet: Fleet) -> None:
    fleet.decisions = None  # type: ignore[assignment]
    with pytest.raises(grpc.RpcError):
        value(keda, ref())


def test_a_stream_says_it_once_and_ends_with_the_data(keda: Any, fleet: Fleet) -> None:
    fleet.decide(4)
    stream = keda.StreamIsActive(ref(), timeout=KEDA_TIMEOUT_S)
    assert next(stream).result is True
    fleet.decide(4, state=DataState.STALE)
    with pytest.raises(grpc.RpcError) as error:
        next(stream)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_open_streams_do_not_keep_others_from_being_answered(keda: Any, fleet: Fleet) -> None:
    fleet.decide(4)
    streams = [keda.StreamIsActive(ref()) for _ in range(50)]
    assert all(next(stream).result for stream in streams)
    assert value(keda, ref()) == 4.0
    for stream in streams:
        stream.cancel()


def test_an_address_in_use_is_said_before_anything_is_served(fleet: Fleet) -> None:
    with KedaScaler(fleet, address="127.0.0.1:0") as first:
        address = f"127.0.0.1:{first.port}"
        with (
            pytest.raises(OSError, match=f"cannot listen on {address}"),
            KedaScaler(fleet, address=address),
        ):
            pass


def test_the_generated_code_is_that_of_the_protocol_file(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", "src"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"src/{PROTO}"),
        ],
        cwd=SRC.parent,
        check=True,
        timeout=60,
    )
    for made in tmp_path.rglob("*_pb2.py*"):
        assert made.read_text() == (SRC / made.relative_to(tmp_path)).read_text()
    assert len(list(tmp_path.rglob("*_pb2.py*"))) == 2
