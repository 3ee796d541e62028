"""What an engine did, as far as its server's ``/metrics`` tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from growpage.bench.throughput.protocol import EngineFigures

_T = TypeVar("_T")

PHASES = "growpage_decision_seconds_sum"


@dataclass(frozen=True)
class Reading:
    """One look at ``/metrics``."""

    values: dict[str, float] = field(default_factory=dict)
    """By name, each the sum over its labels."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase of growpage's work."""
    pool_pages: int | None = None
    """Pages that requests can hold; vLLM keeps one more, its null block."""
    block_size: int | None = None
    """Tokens a page."""

    @classmethod
    def of(cls, exposition: str) -> Reading:
        """Of Prometheus's text format."""
        values: dict[str, float] = {}
        phases: dict[str, float] = {}
        pool_pages = block_size = None
        for family in text_string_to_metric_families(exposition):
            if not family.name.startswith(("vllm:", "growpage_")):
                continue
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
                if sample.name == PHASES:
                    phases[sample.labels["phase"]] = sample.value
                elif sample.name == "vllm:cache_config_info":
                    blocks = _number(sample.labels.get("num_gpu_blocks"))
                    pool_pages = blocks - 1 if blocks else None
                    block_size = _number(sample.labels.get("block_size"))
        return cls(values, phases, pool_pages, block_size)


def figures(before: Reading, after: Reading, samples: Sequence[Reading]) -> EngineFigures:
    """From the metrics before and after a run, and samples of it."""

    def counted(name: str) -> int | None:
        if name not in after.values:
            return None
        return round(after.values[name] - before.values.get(name, 0.0))

    def sampled(name: str) -> list[float]:
        return [sample.values[name] for sample in samples if name in sample.values]

    running = sampled("vllm:num_requests_running")
    usage = sampled("vllm:kv_cache_usage_perc")
    return EngineFigures(
        preemptions=counted("vllm:num_preemptions_total"),
        recomputed_tokens=counted("growpage_recomputed_tokens_total"),
        peak_resident=_of(running, lambda values: round(max(values))),
        mean_resident=_of(running, lambda values: sum(values) / len(values)),
        mean_pages=_pages_a_request(usage, running, after.pool_pages),
        mean_pool_use=_of(usage, lambda values: sum(values) / len(values)),
        peak_pool_use=_of(usage, max),
        compressions=counted("growpage_compressions_total"),
        evicted_tokens=counted("growpage_evicted_tokens_total"),
        seconds={
            phase: seconds - before.phases.get(phase, 0.0)
            for phase, seconds in after.phases.items()
        },
    )


def _number(label: str | None) -> int | None:
    return int(label) if label is not None and label.isdecimal() else None


def _of(values: list[float], what: Callable[[list[float]], _T]) -> _T | None:
    return what(values) if values else None


def _pages_a_request(
    usage: Sequence[float], running: Sequence[float], pool_pages: int | None
) -> float | None:
    """Over all samples and all requests that ran in them."""
    if pool_pages is None or not sum(running):
        return None
    return sum(usage) * pool_pages / sum(running)
