"""Puts the parts together, as the configuration asks for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from growpage.budget.errors import ConfigError
from growpage.fleet.audit import AuditLog
from growpage.fleet.config import AutoscalerSettings, KubernetesSettings
from growpage.fleet.controller import Acted, Controller, Record
from growpage.fleet.latest import LatestDecisions
from growpage.fleet.prometheus import PrometheusClient
from growpage.fleet.targets import Cluster, ScaleError, Target

Sink = Callable[[Record], None]
Running = Callable[[Target], Mapping[str, float]]

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class _Kubernetes:
    """The cluster, whether this autoscaler leads, and who records there what was decided."""

    cluster: Cluster | None = None
    leads: Callable[[], bool] = lambda: True
    sinks: tuple[Sink, ...] = ()


@contextmanager
def autoscaler(settings: AutoscalerSettings, sinks: Sequence[Sink] = ()) -> Iterator[Controller]:
    """A controller with all that it needs, and whatever listens to its decisions.

    Raises:
        ConfigError: something that is configured cannot be used.
    """
    with ExitStack() as stack:
        prometheus = stack.enter_context(PrometheusClient(settings.prometheus))
        kept: list[Controller] = []  # the cluster asks it for loads, once it is made
        kubernetes = _Kubernetes()
        if settings.kubernetes is not None:

            def running(target: Target) -> Mapping[str, float]:
                return kept[0].running(target)

            kubernetes = _kubernetes(settings.kubernetes, running, stack)
        everybody = [*sinks, *kubernetes.sinks]
        if settings.audit_file is not None:
            audit = AuditLog(settings.audit_file, settings.digest())
            stack.callback(audit.close)
            everybody.append(audit)
        if settings.keda_address is not None:
            latest = LatestDecisions(max_age=3 * settings.interval_seconds)
            _serve_keda(settings.keda_address, latest, stack)
            everybody.append(latest)
        kept.append(
            Controller(
                settings,
                prometheus,
                kubernetes.cluster,
                act=settings.kubernetes is not None and settings.kubernetes.act,
                leads=kubernetes.leads,
                sinks=everybody,
            )
        )
        yield kept[0]


def _kubernetes(settings: KubernetesSettings, running: Running, stack: ExitStack) -> _Kubernetes:
    """Connect to the cluster, and take part in the election if this autoscaler is to act."""
    try:
        from growpage.fleet.kube.api import ConnectError, connect
        from growpage.fleet.kube.cluster import Drain, KubernetesCluster
        from growpage.fleet.kube.events import EventRecorder
        from growpage.fleet.kube.leader import Leadership
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"kubernetes is configured, but {error.name} is not installed: "
            "pip install 'growpage[fleet]'"
        ) from None
    try:
        api = connect(settings.kubeconfig, settings.context)
    except ConnectError as error:
        raise ConfigError(str(error)) from None
    identity = socket.gethostname()  # in a pod: its name
    if not settings.act:
        return _Kubernetes(KubernetesCluster(api))
    leadership = stack.enter_context(
        Leadership(
            api, namespace=_lease_namespace(settings), name=settings.lease_name, identity=identity
        )
    )
    cluster = KubernetesCluster(
        api, confirm_leader=leadership.confirm, running=running, drain=Drain(settings.drain)
    )

    def leads() -> bool:
        return leadership.leads

    if not settings.events:
        return _Kubernetes(cluster, leads)
    recorder = EventRecorder(api, instance=identity, speaks=leads)

    def record(record: Record) -> None:
        refused = ScaleError(record.error) if record.acted is Acted.FAILED else None
        recorder.record(record.decision, refused=refused)

    return _Kubernetes(cluster, leads, (record,))


def _lease_namespace(settings: KubernetesSettings) -> str:
    if settings.lease_namespace is not None:
        return settings.lease_namespace
    try:
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        raise ConfigError(
            "kubernetes.lease_namespace is missing, and this is no pod whose namespace could be "
            "taken: say where the Lease is to be"
        ) from None


def _serve_keda(address: str, latest: LatestDecisions, stack: ExitStack) -> None:
    try:
        from growpage.fleet.keda.scaler import KedaScaler
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"keda_address is given, but {error.name} is not installed: "
            "pip install 'growpage[fleet]'"
        ) from None
    try:
        stack.enter_context(KedaScaler(latest.get, address=address))
    except OSError as error:
        raise ConfigError(str(error)) from None
