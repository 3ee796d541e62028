"""An exporter with every metric of the catalogue, and those of vLLM's that the doctor reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from growpage._version import __version__
from growpage.diagnosis.evidence import Engine, Evidence, ServerFacts
from growpage.diagnosis.exposition import Scrape, from_exposition
from growpage.telemetry.catalogue import ENGINE_LABELS, METRICS, Kind

Values = Mapping[str, float | tuple[float, int]]
"""What to export, by ``name{label="value"}``: a gauge's value, by how much a counter rises, or a
histogram's observation and how often it comes."""

VLLM_GAUGES = {
    "vllm:num_requests_running": (),
    "vllm:num_requests_waiting_by_reason": ("reason",),
    "vllm:kv_cache_usage_perc": (),
}
VLLM_COUNTERS = (
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
)

MODE = {
    "policy": "growpage",
    "score": "window",
    "mode": "enforce",
    "cache": "auto",
    "version": __version__,
}
CACHE = {"block_size": "32", "num_gpu_blocks": "91", "enable_prefix_caching": "True"}

HEALTHY: Values = {
    "vllm:num_requests_running": 4,
    'vllm:num_requests_waiting_by_reason{reason="capacity"}': 0,
    "vllm:kv_cache_usage_perc": 0.5,
    "growpage_kv_page_utilization": 0.8,
    "growpage_kv_kept_tokens": 800,
    "growpage_kv_capacity_tokens": 2880,
    "growpage_max_num_seqs": 8,
    "growpage_page_table_fragmentation": 0.3,
}
LOAD: Values = {
    "vllm:prompt_tokens": 100,
    "vllm:generation_tokens": 400,
    'growpage_growths{reason="signal",mode="enforce"}': 20,
    "growpage_page_allocation_latency_seconds": (0.002, 20),
}
"""What happens between two samples of a healthy engine."""

_KEY = re.compile(r"([\w:]+)(?:\{(.*)\})?")


class Exporter:
    """One server's metrics."""

    def __init__(
        self,
        *,
        engine: str = "0",
        mode: Mapping[str, str] = MODE,
        cache: Mapping[str, str] = CACHE,
        growpage: bool = True,
    ) -> None:
        self.registry = CollectorRegistry()
        self._own = {"model_name": "tiny", "engine": engine}
        self._metrics: dict[str, Any] = {}
        for name, labels in VLLM_GAUGES.items():
            self._metrics[name] = Gauge(
                name, "g", (*ENGINE_LABELS, *labels), registry=self.registry
            )
        for name in VLLM_COUNTERS:
            self._metrics[name] = Counter(name, "c", ENGINE_LABELS, registry=self.registry)
            self._metrics[name].labels(**self._own)
        info = Gauge("vllm:cache_config_info", "i", ("engine", *cache), registry=self.registry)
        info.labels(engine=engine, **cache).set(1)
        for metric in METRICS if growpage else ():
            labels = (*ENGINE_LABELS, *metric.labels)
            match metric.kind:
                case Kind.COUNTER:
                    made: Any = Counter(metric.name, "c", labels, registry=self.registry)
                case Kind.GAUGE:
                    made = Gauge(metric.name, "g", labels, registry=self.registry)
                case Kind.HISTOGRAM:
                    made = Histogram(
                        metric.name, "h", labels, buckets=metric.buckets, registry=self.registry
                    )
            self._metrics[metric.name] = made
            if not metric.labels:
                made.labels(**self._own)
        if growpage:
            self._metrics["growpage_mode_info"].labels(**self._own, **mode).set(1)

    def apply(self, values: Values) -> None:
        """Set gauges, raise counters, observe."""
        for key, value in values.items():
            found = _KEY.fullmatch(key)
            assert found
            name, labels = found[1], dict(re.findall(r'(\w+)="(.*?)"', found[2] or ""))
            if name not in self._metrics and name.startswith("growpage_"):
                continue  # a plain vLLM
            metric = self._metrics[name].labels(**self._own, **labels)
            if isinstance(value, tuple):
                for _ in range(value[1]):
                    metric.observe(value[0])
            elif isinstance(self._metrics[name], Counter):
                metric.inc(value)
            else:
                metric.set(value)

    def text(self) -> str:
        """What ``/metrics`` says now."""
        return generate_latest(self.registry).decode()


def two_samples(
    before: Values | None = None,
    between: Values | None = None,
    *,
    seconds: float = 10.0,
    **made: Any,
) -> tuple[Engine, ...]:
    """A healthy engine, changed as told before its first sample and between the two."""
    exporter = Exporter(**made)
    exporter.apply({**HEALTHY, **(before or {})})
    first = exporter.text()
    exporter.apply({**LOAD, **(between or {})})
    return from_exposition([Scrape(1000.0, first), Scrape(1000.0 + seconds, exporter.text())])


def evidence_of(*engines: Engine, vllm: str | None = "0.32.0") -> Evidence:
    """Evidence as a server gives it."""
    return Evidence("test", engines, server=ServerFacts(vllm, ("tiny",)))
