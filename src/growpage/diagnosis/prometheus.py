"""Evidence from Prometheus: the last hour, say, of every engine that it scrapes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx2

from growpage.diagnosis.errors import SourceError
from growpage.diagnosis.evidence import RUNNING, Engine, EngineBuilder, Evidence, TargetFacts
from growpage.diagnosis.server import base_url, open_client, request
from growpage.telemetry.catalogue import exposed_names

VLLM_METRICS = (
    RUNNING,
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
)
"""What the checks read of vLLM's own metrics, as far as it carries the label ``model_name``."""

CACHE_CONFIG = "vllm:cache_config_info"

POINTS = 60
"""Points of each series that Prometheus is asked for."""

_DURATION = re.compile(r"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds_of(duration: str) -> float:
    """``1h30m`` in seconds.

    Raises:
        SourceError: it is no duration, or none at all.
    """
    found = _DURATION.fullmatch(duration)
    seconds = 0
    if found:
        sizes = (86400, 3600, 60, 1)
        seconds = sum(int(n or 0) * size for n, size in zip(found.groups(), sizes, strict=True))
    if not seconds:
        raise SourceError(f"--since is {duration!r}, but must be a duration such as 30m, 1h or 2d")
    return float(seconds)


def from_prometheus(
    url: str, *, model: str | None = None, since: str = "1h", api_key: str | None = None
) -> Evidence:
    """The metrics of every engine, or of one model's, over the time ``since`` then.

    Raises:
        SourceError: the address is none, the key is refused, it is no Prometheus, it refuses the
            query, or it knows no such model.
        UnreachableError: it does not answer.
    """
    span = seconds_of(since)
    base = base_url(url, "/api/v1", "/graph")
    with open_client(base, api_key) as client:
        prometheus = _Prometheus(client, base)
        # Prometheus's clock, not ours; in whole seconds and steps, so that the last is the end.
        now = math.ceil(float(prometheus.query("time()")[1]))
        step = max(math.ceil(span / POINTS), 1)
        window = (now - math.ceil(span / step) * step, now, step)
        wanted = _selector("|".join(sorted({*VLLM_METRICS, *exposed_names()})), model)
        matrix = prometheus.query_range(wanted, *window)
        if not matrix:
            raise _no_series(prometheus, base, model, since)
        matrix += prometheus.query_range(CACHE_CONFIG, *window)
        declared = prometheus.declared()
        engines, gone = _engines(matrix, now, declared)
        targets = _targets(prometheus, matrix, gone)
    return Evidence(f"{base}, the last {since}", tuple(engines), targets=targets)


class _Prometheus:
    """The three questions that are asked of Prometheus's HTTP API."""

    def __init__(self, client: httpx2.Client, base: str) -> None:
        self._client = client
        self._base = base

    def query(self, expression: str) -> Any:
        return self._data("/api/v1/query", {"query": expression})["result"]

    def query_range(self, expression: str, start: int, end: int, step: int) -> list[dict[str, Any]]:
        form = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        result: list[dict[str, Any]] = self._data("/api/v1/query_range", form)["result"]
        return result

    def declared(self) -> frozenset[str]:
        """Families that the targets describe; none where the store keeps no descriptions."""
        try:
            return frozenset(self._data("/api/v1/metadata", None))
        except SourceError:
            return frozenset()

    def _data(self, path: str, form: dict[str, str] | None) -> Any:
        answer = request(self._client, path, form)
        if answer.status_code in (401, 403):
            raise SourceError(
                f"{self._base} refuses the query ({answer.status_code}); "
                "give its bearer token with --api-key"
            )
        try:
            content = answer.json()
            if content["status"] == "success":
                return content["data"]
            message = content["error"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise SourceError(
                f"{self._base} answers {answer.status_code} to {path}, and not as Prometheus does; "
                "is it Prometheus?"
            ) from None
        raise SourceError(f"{self._base} refuses the query: {message}")


def _selector(names: str, model: str | None) -> str:
    matchers = [f'__name__=~"{names}"']
    if model is not None:
        matchers.append(f"model_name={json.dumps(model, ensure_ascii=False)}")
    return "{" + ",".join(matchers) + "}"


def _no_series(prometheus: _Prometheus, base: str, model: str | None, since: str) -> SourceError:
    if model is None:
        return SourceError(
            f"{base} has no vllm:* series in the last {since}; does it scrape the servers?"
        )
    found = prometheus.query(f"group by (model_name) (last_over_time({RUNNING}[{since}]))")
    names = sorted(each["metric"].get("model_name", "") for each in found)
    known = f"it has {', '.join(names)}" if names else "it has no other either"
    return SourceError(f"{base} has no series of the model {model!r} in the last {since}; {known}")


Target = tuple[str, str, str]
"""Job, instance and engine: what tells engines apart."""


def _target(labels: Mapping[str, str]) -> Target:
    return *_job_and_instance(labels), labels.get("engine", "")


def _engines(
    matrix: Iterable[Mapping[str, Any]], now: float, declared: frozenset[str]
) -> tuple[list[Engine], list[str]]:
    """The engines that report at the end of the span, and the names of those that do not."""
    builders: dict[Target, EngineBuilder] = {}
    for series in matrix:
        labels: Mapping[str, str] = series["metric"]
        name = labels["__name__"]
        target = _target(labels)
        if name == CACHE_CONFIG and target not in builders:
            continue  # it does not say which model's
        builder = builders.setdefault(target, EngineBuilder(_name(labels)))
        kept = {key: value for key, value in labels.items() if key != "__name__"}
        for time, value in series["values"]:
            builder.add(name, kept, float(time), float(value))
    engines = [builder.build(declared) for _, builder in sorted(builders.items())]
    alive = [engine for engine in engines if _reports(engine, now)]
    return alive, [engine.name for engine in engines if engine not in alive]


def _reports(engine: Engine, now: float) -> bool:
    """Prometheus ends a series where its target is gone, at the latest after five minutes."""
    running = engine.series.get(RUNNING, ())
    return any(now - series.end < 1e-3 for series in running)


def _name(labels: Mapping[str, str]) -> str:
    place = labels.get("pod") or labels.get("instance") or "somewhere"
    return f"{place} engine {labels.get('engine', '?')}"


def _targets(
    prometheus: _Prometheus, matrix: Iterable[Mapping[str, Any]], gone: list[str]
) -> TargetFacts:
    """Whether the targets behind the series, and others that look like them, are up."""
    known = {_job_and_instance(each["metric"]) for each in matrix}
    jobs = {job for job, _ in known if job}
    up = dict(_ups(prometheus, jobs)) if jobs else {}
    # A job that scrapes other things too says nothing of a target that has never answered.
    mixed = {target[0] for target, alive in up.items() if alive and target not in known}
    ours = {
        target: alive for target, alive in up.items() if target in known or target[0] not in mixed
    }
    return TargetFacts(
        up=sum(ours.values()),
        down=tuple(sorted(instance for (_, instance), alive in ours.items() if not alive)),
        gone=tuple(gone),
    )


def _ups(prometheus: _Prometheus, jobs: Iterable[str]) -> Iterator[tuple[tuple[str, str], bool]]:
    either = "|".join(map(re.escape, sorted(jobs)))
    for each in prometheus.query(f"up{{job=~{json.dumps(either)}}}"):
        yield _job_and_instance(each["metric"]), float(each["value"][1]) > 0


def _job_and_instance(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")
