"""Where a model's series are in Prometheus, and which of its pods live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from growpage.fleet.config import ModelSettings, Policy, PrometheusSettings
from growpage.fleet.metric_names import LABELS, METRICS, Signal, spellings
from growpage.fleet.prometheus import Answer, PrometheusClient, Sample, Series
from growpage.fleet.signals import pod_of
from growpage.fleet.targets import Replicas, Target


@dataclass(frozen=True)
class Source:
    """One served model.

    Attributes:
        model: its served name.
        target: the workload that serves it.
        labels: what its series have, besides ``model_name``.
        policy: its thresholds.
        metrics: metrics to take signals from, instead of vLLM's own.
        configured: whether somebody wrote down the target, or it was named after what Prometheus
            calls the job.
    """

    model: str
    target: Target
    labels: Mapping[str, str]
    policy: Policy
    metrics: Mapping[Signal, str]
    configured: bool = True

    @classmethod
    def of(cls, settings: ModelSettings, prometheus: PrometheusSettings) -> Source:
        """As it is configured."""
        target = settings.target.target()
        labels = dict(settings.match)
        if prometheus.namespace_label is not None:
            labels.setdefault(prometheus.namespace_label, target.namespace)
        return cls(settings.model, target, labels, settings.policy, settings.metrics)

    def names(self, signal: Signal) -> tuple[str, ...]:
        """The metrics that may measure a signal here, the one to prefer first."""
        if signal in self.metrics:
            return (self.metrics[signal],)
        return tuple(spelled for name in METRICS[signal] for spelled in spellings(name))

    def matchers(self, signal: Signal) -> Mapping[str, str]:
        """The labels of a signal's series. Prometheus' own ``up`` knows no model."""
        if signal is Signal.UP:
            return self.labels
        more = {} if signal in self.metrics else LABELS.get(signal, {})
        return {"model_name": self.model, **self.labels, **more}


@dataclass(frozen=True)
class Gathered:
    """All samples of a model."""

    answers: Mapping[Signal, Sequence[Answer]]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What Prometheus warned of, each once."""
        return tuple(
            dict.fromkeys(
                warning
                for answers in self.answers.values()
                for answer in answers
                for warning in answer.warnings
            )
        )

    @property
    def queries(self) -> dict[str, str]:
        """The queries behind each signal."""
        return {
            str(signal): "; ".join(answer.query for answer in answers)
            for signal, answers in self.answers.items()
        }

    def series(self, signal: Signal) -> Iterator[Series]:
        """All series of a signal, whatever their name."""
        for answer in self.answers.get(signal, ()):
            yield from answer.series


def gather(client: PrometheusClient, source: Source, *, end: float, seconds: float) -> Gathered:
    """The raw samples of every signal of a model, from the last ``seconds`` before ``end``.

    Raises:
        PrometheusError: one of the questions was not answered; half of the data would mislead.
    """

    def ask(signal: Signal, names: Iterable[str]) -> list[Answer]:
        matchers = source.matchers(signal)
        return [client.samples(name, matchers, end=end, seconds=seconds) for name in names]

    usage = ask(Signal.KV_USAGE, source.names(Signal.KV_USAGE))
    # How vLLM's names are spelled here shows in one signal; the others need not be asked for twice.
    spelled = {_prefix(answer.query) for answer in usage if answer.series} - {""}
    answers: dict[Signal, Sequence[Answer]] = {Signal.KV_USAGE: usage}
    for signal in Signal:
        if signal is not Signal.KV_USAGE:
            names = source.names(signal)
            if spelled:
                names = tuple(name for name in names if _prefix(name) in {"", *spelled})
            answers[signal] = ask(signal, names)
    return Gathered(answers)


def _prefix(name: str) -> str:
    """How vLLM's prefix is spelled in a name; empty if it has none."""
    return name[:5] if name.startswith(("vllm:", "vllm_")) else ""


def replicas_by_scrape(
    gathered: Gathered, *, now: float, max_age: float, pod_label: str
) -> Replicas | None:
    """The replicas as Prometheus sees them: what it scrapes in the jobs that know the model.

    Returns:
        None if it scrapes nothing of the kind, or has not done so for ``max_age`` without a break:
        just after a start it has not been round all pods, and would count too few.
    """
    reported = {
        (series.labels.get("job"), pod_of(series.labels, pod_label))
        for series in gathered.series(Signal.KV_USAGE)
    }
    jobs = {job for job, _ in reported}
    reaching: dict[str, Sample] = {}
    longest = 0.0
    for series in gathered.series(Signal.UP):
        name = pod_of(series.labels, pod_label)
        if name is None or series.labels.get("job") not in jobs or not series.samples:
            continue
        newest = series.samples[-1]
        if now - newest[0] <= max_age:
            # Of two Prometheuses that scrape it, the later one.
            reaching[name] = max(reaching.get(name, newest), newest)
            longest = max(longest, now - _unbroken_since(series.samples, max_age))
    if longest < max_age:
        return None
    known = {name for _, name in reported}
    ready = sum(1 for _, value in reaching.values() if value == 1)
    starting = sum(1 for name, (_, value) in reaching.items() if value != 1 and name not in known)
    return Replicas(len(reaching), ready, starting, tuple(sorted(reaching)))


def _unbroken_since(samples: Sequence[Sample], longest_gap: float) -> float:
    """When the samples that reach the newest without a longer gap begin."""
    begin = samples[-1][0]
    for when, _ in reversed(samples):
        if begin - when > longest_gap:
            break
        begin = when
    return begin


def discover(
    client: PrometheusClient, prometheus: PrometheusSettings, policy: Policy, *, now: float
) -> list[Source]:
    """Every model that some pod has reported lately, by namespace and scrape job.

    Raises:
        PrometheusError: no answer that can be used.
    """
    found: dict[tuple[str, str, str], Source] = {}
    for answer in _usage_of_all(client, now=now, seconds=policy.max_age_seconds):
        for series in answer.series:
            model = series.labels.get("model_name")
            if not model:
                continue
            job = series.labels.get("job", "")
            namespace = series.labels.get(prometheus.namespace_label or "", "")
            labels = {"job": job} if job else {}
            if namespace and prometheus.namespace_label:
                labels[prometheus.namespace_label] = namespace
            found[model, namespace, job] = Source(
                model=model,
                target=Target(namespace or "default", "Deployment", job or model),
                labels=labels,
                policy=policy,
                metrics={},
                configured=False,
            )
    return [found[key] for key in sorted(found)]


def models_known(client: PrometheusClient, *, now: float, seconds: float) -> list[str]:
    """The models that Prometheus has series of, to name them when another was asked for.

    Raises:
        PrometheusError: no answer that can be used.
    """
    return sorted(
        {
            series.labels["model_name"]
            for answer in _usage_of_all(client, now=now, seconds=seconds)
            for series in answer.series
            if "model_name" in series.labels
        }
    )


def _usage_of_all(client: PrometheusClient, *, now: float, seconds: float) -> Iterator[Answer]:
    """The KV usage of every model, under each name that it may have."""
    for name in METRICS[Signal.KV_USAGE]:
        for spelled in spellings(name):
            yield client.samples(spelled, {}, end=now, seconds=seconds)
