"""Every metric that growpage exports: name, kind, unit, labels and meaning, in one table.

All carry vLLM's own labels, ``model_name`` and ``engine``, before those named here. Counters appear
with the suffix ``_total``, histograms as ``_bucket``, ``_sum`` and ``_count``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ENGINE_LABELS = ("model_name", "engine")


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """Without the suffix ``_total`` of a counter."""
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    """Besides :data:`ENGINE_LABELS`."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without infinity."""

    @property
    def exposed(self) -> tuple[str, ...]:
        """The names under which Prometheus sees it."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.GAUGE:
                return (self.name,)
            case Kind.HISTOGRAM:
                return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_TOKENS = tuple(float(2**power) for power in range(6, 18))
_PAGES = tuple(float(2**power) for power in range(12))
_SHARES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75)
_NATS = (0.25, 0.5, 1.0, 1.5, 2.1, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
_DENSITIES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

METRICS: tuple[Metric, ...] = (
    # ---- pages -------------------------------------------------------------------------------
    Metric(
        "growpage_kv_page_utilization",
        Kind.GAUGE,
        "ratio, 0 to 1",
        "KV tokens kept by running requests over the slots of the pages that they hold. Low: pages "
        "are large for the requests, or reserved for more than they hold.",
    ),
    Metric(
        "growpage_kv_page_allocations",
        Kind.COUNTER,
        "pages",
        "Pages that requests have taken from the pool.",
    ),
    Metric(
        "growpage_page_allocation_latency_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "From the moment at which a request is seen to have filled its pages to a page that it can "
        "write to, new or emptied by a compression.",
        buckets=_SECONDS,
    ),
    Metric(
        "growpage_reclaimed_pages",
        Kind.COUNTER,
        "pages",
        "Pages that compressions have given back to the pool.",
        ("mode",),
    ),
    Metric(
        "growpage_request_pages",
        Kind.HISTOGRAM,
        "pages",
        "The most pages that a request has held at once, observed when it ends.",
        buckets=_PAGES,
    ),
    Metric(
        "growpage_page_table_fragmentation",
        Kind.GAUGE,
        "ratio, 0 to 1",
        "Neighbours in the page tables of running requests that are not neighbours in memory, over "
        "all neighbours. 0: every request's pages lie in one piece.",
    ),
    Metric(
        "growpage_orphaned_pages",
        Kind.GAUGE,
        "pages",
        "Pages that are neither free nor held by any request. Above 0 there is a leak.",
    ),
    # ---- tokens ------------------------------------------------------------------------------
    Metric(
        "growpage_kv_kept_tokens",
        Kind.GAUGE,
        "tokens",
        "KV tokens that running requests hold now.",
    ),
    Metric(
        "growpage_kv_logical_tokens",
        Kind.GAUGE,
        "tokens",
        "KV tokens that running requests would hold uncompressed: the demand that compression "
        "hides from vllm:kv_cache_usage_perc.",
    ),
    Metric(
        "growpage_kv_capacity_tokens",
        Kind.GAUGE,
        "tokens",
        "KV tokens that the whole pool has room for.",
    ),
    Metric(
        "growpage_kv_demand_tokens",
        Kind.HISTOGRAM,
        "tokens",
        "KV tokens that a request would have held uncompressed, observed when it ends.",
        buckets=_TOKENS,
    ),
    Metric(
        "growpage_evicted_tokens",
        Kind.COUNTER,
        "tokens",
        "KV tokens evicted, per layer and KV head alike.",
        ("mode",),
    ),
    Metric(
        "growpage_compression_ratio",
        Kind.GAUGE,
        "ratio, 1 or more",
        "Logical over kept tokens of the running requests.",
    ),
    Metric(
        "growpage_intra_page_compress_ratio",
        Kind.GAUGE,
        "ratio",
        "Bytes that the kept KV would take at 16 bits over the bytes it takes: 1 with a 16-bit "
        "cache, 2 with an 8-bit one.",
    ),
    # ---- decisions ---------------------------------------------------------------------------
    Metric(
        "growpage_compressions",
        Kind.COUNTER,
        "compressions",
        "Compressions, by reason: boundary, pool, admission, max_pages, over_capacity, replay, "
        "quota, growth_rate. In the mode observe: those that there would have been.",
        ("reason", "mode"),
    ),
    Metric(
        "growpage_growths",
        Kind.COUNTER,
        "capacity steps",
        "Capacity steps granted, by reason: signal (the policy wanted it), cold (nothing had been "
        "measured yet), spare (elastic had free memory).",
        ("reason", "mode"),
    ),
    Metric(
        "growpage_growth_refused",
        Kind.COUNTER,
        "capacity steps",
        "Capacity steps that the policy wanted and that were refused, by reason: pool, max_pages, "
        "quota, growth_rate.",
        ("reason", "mode"),
    ),
    Metric(
        "growpage_predicted_loss",
        Kind.HISTOGRAM,
        "ratio, 0 to 1",
        "Attention mass that a compression was predicted to lose, where demand had been measured.",
        ("mode",),
        _SHARES,
    ),
    Metric(
        "growpage_decision_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Time in a phase of a decision: decide (a pass of the scheduler), measure (one "
        "request's attention), compact (one compression), capture (a step's queries). On a device "
        "that runs asynchronously, the time to launch.",
        ("phase",),
        _SECONDS,
    ),
    Metric(
        "growpage_lts_entropy",
        Kind.HISTOGRAM,
        "nats",
        "Mean attention entropy of a request's last 512 steps, when its demand was measured. With "
        "the policy entropy, or track_entropy.",
        buckets=_NATS,
    ),
    Metric(
        "growpage_sts_density",
        Kind.HISTOGRAM,
        "ratio, 0 to 1",
        "Share of a request's last 32 steps in the fullest bin of their entropies, when its demand "
        "was measured. With the policy entropy, or track_entropy.",
        buckets=_DENSITIES,
    ),
    # ---- preemption --------------------------------------------------------------------------
    Metric(
        "growpage_recomputed_tokens",
        Kind.COUNTER,
        "tokens",
        "Tokens computed again after preemptions, prefix-cache hits deducted.",
    ),
    Metric(
        "growpage_refused_prompts",
        Kind.COUNTER,
        "requests",
        "Requests whose prompt was longer than the whole pool.",
    ),
    # ---- the engine --------------------------------------------------------------------------
    Metric(
        "growpage_max_num_seqs",
        Kind.GAUGE,
        "requests",
        "Requests that the engine runs at once at most (--max-num-seqs).",
    ),
    Metric(
        "growpage_compactions_confirmed",
        Kind.COUNTER,
        "compressions",
        "Compressions that the worker says it has carried out. Flat while growpage_compressions "
        "rises in the mode enforce: the plugin is inactive in the worker.",
    ),
    Metric(
        "growpage_mode_info",
        Kind.GAUGE,
        "1",
        "Always 1; the labels say how the engine is set: policy, score, mode (observe or enforce), "
        "cache (the KV cache's type), version (of growpage).",
        ("policy", "score", "mode", "cache", "version"),
    ),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}


def exposed_names() -> frozenset[str]:
    """Every name under which Prometheus sees a metric of growpage."""
    return frozenset(name for metric in METRICS for name in metric.exposed)
