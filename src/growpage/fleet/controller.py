"""One round of the autoscaler: look at every model, decide, record, and act if told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import structlog

from growpage.fleet.config import AutoscalerSettings
from growpage.fleet.decide import Situation, decide
from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.metric_names import Signal
from growpage.fleet.observation import Observation
from growpage.fleet.prometheus import (
    PrometheusClient,
    PrometheusError,
    PrometheusUnreachableError,
)
from growpage.fleet.signals import Limits, by_pod, observe
from growpage.fleet.sources import (
    Gathered,
    Source,
    discover,
    gather,
    models_known,
    replicas_by_scrape,
)
from growpage.fleet.stabilisation import ChangeLog
from growpage.fleet.targets import Cluster, Replicas, ScaleError, Target

log = structlog.get_logger(__name__)


class Acted(StrEnum):
    """What became of a decision."""

    NOTHING_TO_DO = "nothing to do"
    DRY_RUN = "dry run"
    SCALED = "scaled"
    FAILED = "failed"


@dataclass(frozen=True)
class Record:
    """A decision, and what became of it.

    Attributes:
        time: Prometheus' time of the data, in seconds since the epoch; None if it did not say.
        decision: what was decided.
        acted: what became of it.
        error: why the target could not be scaled; empty if it could, or had not to be.
    """

    time: float | None
    decision: Decision
    acted: Acted
    error: str = ""


@dataclass(frozen=True)
class Round:
    """The decisions of one round.

    Attributes:
        records: one a model.
        unreachable: why Prometheus could not be asked; empty if it could.
    """

    records: tuple[Record, ...]
    unreachable: str = ""

    @property
    def holds(self) -> bool:
        """Whether for some model nothing could be decided, for want of data that can be trusted."""
        return not self.records or any(
            record.decision.action is Action.NO_ACTION
            and record.decision.state is not DataState.FRESH
            for record in self.records
        )

    @property
    def failed(self) -> bool:
        """Whether some target was to be scaled and was not."""
        return any(record.acted is Acted.FAILED for record in self.records)


class Controller:
    """Decides for every model, again and again. Keeps no data but how replicas changed."""

    def __init__(
        self,
        settings: AutoscalerSettings,
        prometheus: PrometheusClient,
        cluster: Cluster | None = None,
        *,
        act: bool = False,
        sinks: Sequence[Callable[[Record], None]] = (),
    ) -> None:
        """Args: the configuration, its Prometheus, where the targets live, and who is told.

        Without a cluster, replicas are what Prometheus scrapes, and nothing can be acted on.
        """
        if act and cluster is None:
            raise ValueError("acting needs a cluster")
        self._settings = settings
        self._prometheus = prometheus
        self._cluster = cluster
        self._act = act
        self._sinks = sinks
        self._changes: dict[Target, ChangeLog] = {}
        self._running: dict[Target, dict[str, float]] = {}
        self._configured = [Source.of(model, settings.prometheus) for model in settings.models]

    def run_once(self) -> Round:
        """Decide once for every model, and act if told to. No failure of a source escapes."""
        unreachable = ""
        sources = self._configured
        now: float | None = None
        trouble = ""
        try:
            now = self._prometheus.now()
            if not sources:
                sources = discover(
                    self._prometheus,
                    self._settings.prometheus,
                    self._settings.policy,
                    now=now,
                )
        except PrometheusError as error:
            trouble = unreachable = str(error)
        records = []
        for source in sources:
            situation, failure = self._look(source, now, trouble)
            unreachable = unreachable or failure
            record = self._carry_out(decide(situation, source.policy), now)
            for sink in self._sinks:
                sink(record)
            records.append(record)
        return Round(tuple(records), unreachable)

    def running(self, target: Target) -> dict[str, float]:
        """Running requests by pod, as the last round saw them; of pods that are known only."""
        return self._running.get(target, {})

    def _look(self, source: Source, now: float | None, trouble: str) -> tuple[Situation, str]:
        """What is known of a model, and why Prometheus could not be reached if it could not."""
        failure = ""
        gathered: Gathered | None = None
        interval = self._settings.interval_seconds
        policy = source.policy
        back = ceil(policy.history_seconds(interval) / interval) * interval
        if now is not None and not trouble:
            oldest = back + max(policy.max_age_seconds, policy.usage_window_seconds) + interval
            try:
                gathered = gather(self._prometheus, source, end=now, seconds=oldest)
            except PrometheusError as error:
                trouble = str(error)
                failure = trouble if isinstance(error, PrometheusUnreachableError) else ""
        replicas, cold_start, origin = self._replicas(source, gathered, now)
        history: tuple[Observation, ...] = ()
        if gathered is not None and now is not None:
            live = replicas.pods if replicas is not None else ()
            pods = by_pod(
                gathered.answers, pod_label=self._settings.prometheus.pod_label, live=live
            )
            history = observe(
                pods,
                [now - back + interval * number for number in range(round(back / interval) + 1)],
                Limits(
                    max_age=policy.max_age_seconds,
                    usage_window=policy.usage_window_seconds,
                    idle_usage=policy.scale_in_usage,
                ),
                starting=replicas.pending if replicas is not None else 0,
                warnings=gathered.warnings,
            )
            if history[-1].state is DataState.ABSENT:
                trouble = self._explain_absence(source, gathered, now)
        self._running[source.target] = {
            pod.pod: pod.running
            for pod in (history[-1].fresh if history else ())
            if pod.running is not None
        }
        changes = self._changes.setdefault(source.target, ChangeLog(policy))
        if replicas is not None and now is not None:
            changes.note(now, replicas.desired)
        queries = gathered.queries if gathered is not None else {}
        return (
            Situation(
                model=source.model,
                target=source.target,
                replicas=replicas,
                history=history,
                changes=changes.changes,
                cold_start=cold_start,
                queries={**queries, "replicas": origin},
                trouble=trouble,
            ),
            failure,
        )

    def _replicas(
        self, source: Source, gathered: Gathered | None, now: float | None
    ) -> tuple[Replicas | None, float | None, str]:
        """The replicas, the measured cold start, and who said so."""
        if self._cluster is None:
            if gathered is None or now is None:
                return None, None, ""
            replicas = replicas_by_scrape(
                gathered,
                now=now,
                max_age=source.policy.max_age_seconds,
                pod_label=self._settings.prometheus.pod_label,
            )
            return replicas, None, gathered.queries[Signal.UP]
        try:
            replicas = self._cluster.replicas(source.target)
            return replicas, self._cluster.cold_start_seconds(source.target), "Kubernetes"
        except Exception as error:  # whatever its client raises: this model holds, others go on
            log.warning("replicas unknown", target=str(source.target), error=str(error))
            return None, None, "Kubernetes"

    def _explain_absence(self, source: Source, gathered: Gathered, now: float) -> str:
        """What was looked for, and what there is instead."""
        labels = ", ".join(f'{name}="{value}"' for name, value in source.labels.items())
        where = f" with {labels}" if labels else ""
        if any(True for _ in gathered.series(Signal.KV_USAGE)):
            return (
                f"no series of {source.model} names a live pod of {source.target}: check the label "
                f"{self._settings.prometheus.pod_label!r}"
            )
        seconds = source.policy.max_age_seconds
        try:
            known = models_known(self._prometheus, now=now, seconds=seconds)
        except PrometheusError:
            known = []
        others = f"; it has {', '.join(known[:5])}" if known else ""
        return f"Prometheus has no KV usage of model {source.model!r}{where}{others}"

    def _carry_out(self, decision: Decision, now: float | None) -> Record:
        if decision.action is Action.NO_ACTION:
            return Record(now, decision, Acted.NOTHING_TO_DO)
        if not self._act or self._cluster is None:
            return Record(now, decision, Acted.DRY_RUN)
        if decision.desired is None or decision.current is None:
            raise AssertionError("only a hold may be without numbers")
        try:
            self._cluster.scale(decision.target, decision.desired, expected=decision.current)
        except ScaleError as error:
            log.error("not scaled", target=str(decision.target), error=str(error))
            return Record(now, decision, Acted.FAILED, str(error))
        return Record(now, decision, Acted.SCALED)
