"""One round of the autoscaler: look at every model, decide, record, and act if told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import structlog

from growpage.fleet.config import AutoscalerSettings, Policy
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
    STANDING_BY = "standing by"
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


@dataclass(frozen=True)
class _Counted:
    """The replicas of a target, who said so, and why they are not known if they are not."""

    replicas: Replicas | None = None
    cold_start: float | None = None
    origin: str = ""
    trouble: str = ""


class Controller:
    """Decides for every model, again and again. Keeps no data but how replicas changed."""

    def __init__(
        self,
        settings: AutoscalerSettings,
        prometheus: PrometheusClient,
        cluster: Cluster | None = None,
        *,
        act: bool = False,
        leads: Callable[[], bool] = lambda: True,
        sinks: Sequence[Callable[[Record], None]] = (),
    ) -> None:
        """Without a cluster, replicas are what Prometheus scrapes, and nothing can be acted on.

        Args:
            settings: the configuration.
            prometheus: where the metrics are.
            cluster: where the targets live.
            act: whether to scale them.
            leads: whether this autoscaler acts, of several that could.
            sinks: who is told of every decision.
        """
        if act and cluster is None:
            raise ValueError("acting needs a cluster")
        self._settings = settings
        self._prometheus = prometheus
        self._cluster = cluster
        self._act = act
        self._leads = leads
        self._sinks = sinks
        self._changes: dict[tuple[str, Target], ChangeLog] = {}
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
        gathered: Gathered | None = None
        unreachable = ""
        if now is not None and not trouble:
            try:
                gathered = gather(
                    self._prometheus, source, end=now, seconds=self._oldest_sample(source.policy)
                )
            except PrometheusError as error:
                trouble = str(error)
                unreachable = trouble if isinstance(error, PrometheusUnreachableError) else ""
        counted = self._count(source, gathered, now)
        history: tuple[Observation, ...] = ()
        if gathered is not None and now is not None:
            history = self._observe(source.policy, gathered, counted.replicas, now)
            if counted.trouble:
                trouble = counted.trouble
            elif not history[-1].pods:
                trouble = self._explain_absence(source, gathered, counted.replicas, now)
        self._running[source.target] = {
            pod.pod: pod.running
            for pod in (history[-1].fresh if history else ())
            if pod.running is not None
        }
        changes = self._changes.setdefault((source.model, source.target), ChangeLog(source.policy))
        if counted.replicas is not None and now is not None:
            changes.note(now, counted.replicas.desired)
        situation = Situation(
            model=source.model,
            target=source.target,
            replicas=counted.replicas,
            history=history,
            changes=changes.changes,
            cold_start=counted.cold_start,
            queries={
                **(gathered.queries if gathered is not None else {}),
                "replicas": counted.origin,
            },
            trouble=trouble,
        )
        return situation, unreachable

    def _steps_back(self, policy: Policy) -> int:
        """How many observations before now the decision looks at."""
        interval = self._settings.interval_seconds
        return ceil(policy.history_seconds(interval) / interval)

    def _oldest_sample(self, policy: Policy) -> float:
        """How old a sample may be that the oldest observation still needs, in seconds."""
        interval = self._settings.interval_seconds
        reach = max(policy.max_age_seconds, policy.usage_window_seconds)
        return self._steps_back(policy) * interval + reach + interval

    def _observe(
        self, policy: Policy, gathered: Gathered, replicas: Replicas | None, now: float
    ) -> tuple[Observation, ...]:
        interval = self._settings.interval_seconds
        return observe(
            by_pod(
                gathered.answers,
                pod_label=self._settings.prometheus.pod_label,
                live=replicas.pods if replicas is not None else (),
            ),
            [now - interval * ago for ago in range(self._steps_back(policy), -1, -1)],
            Limits(
                max_age=policy.max_age_seconds,
                usage_window=policy.usage_window_seconds,
                idle_usage=policy.scale_in_usage,
            ),
            starting=replicas.pending if replicas is not None else 0,
            warnings=gathered.warnings,
        )

    def _count(self, source: Source, gathered: Gathered | None, now: float | None) -> _Counted:
        """How many replicas there are, by Kubernetes or else by what Prometheus scrapes."""
        if self._cluster is not None:
            try:
                return _Counted(
                    self._cluster.replicas(source.target),
                    self._cluster.cold_start_seconds(source.target),
                    "Kubernetes",
                )
            except Exception as error:  # whatever its client raises: this model holds, others go on
                log.warning("replicas unknown", target=str(source.target), error=str(error))
                return _Counted(origin="Kubernetes", trouble=str(error))
        if gathered is None or now is None:
            return _Counted()
        replicas = replicas_by_scrape(
            gathered,
            now=now,
            max_age=source.policy.max_age_seconds,
            pod_label=self._settings.prometheus.pod_label,
        )
        trouble = ""
        if replicas is None and any(gathered.series(Signal.KV_USAGE)):
            trouble = (
                f"Prometheus has not scraped {source.model} for "
                f"{source.policy.max_age_seconds:g} s without a break"
            )
        return _Counted(replicas, None, gathered.queries[Signal.UP], trouble)

    def _explain_absence(
        self, source: Source, gathered: Gathered, replicas: Replicas | None, now: float
    ) -> str:
        """What was looked for, and what there is instead."""
        if replicas is not None and not replicas.pods:
            return f"{source.target} has no pods"
        if any(gathered.series(Signal.KV_USAGE)):
            return (
                f"no series of {source.model} names a live pod of {source.target}: check the label "
                f"{self._settings.prometheus.pod_label!r}"
            )
        labels = ", ".join(f'{name}="{value}"' for name, value in source.labels.items())
        where = f" with {labels}" if labels else ""
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
        if not self._leads():
            return Record(now, decision, Acted.STANDING_BY)
        if decision.desired is None or decision.current is None:
            raise AssertionError("only a hold may be without numbers")
        try:
            self._cluster.scale(decision.target, decision.desired, expected=decision.current)
        except ScaleError as error:
            log.error("not scaled", target=str(decision.target), error=str(error))
            return Record(now, decision, Acted.FAILED, str(error))
        return Record(now, decision, Acted.SCALED)
