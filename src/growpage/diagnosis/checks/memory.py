"""Checks of an engine's KV memory: how well it is used, and why requests lack it."""

from __future__ import annotations

from growpage.diagnosis.checks.pressure import (
    LOW,
    USAGE,
    WAITING,
    full_while_waiting,
    peak_usage,
    waits,
)
from growpage.diagnosis.checks.pressure import preemptions as preemptions_of
from growpage.diagnosis.checks.verdict import Verdict, failure, ok, unknown, warning
from growpage.diagnosis.evidence import RUNNING, Engine, MissingMetricError

LOW_UTILIZATION = 0.65
"""Mean share of filled slots below which pages are wasted."""

SLOW_ALLOCATION_S = 0.015
"""99th percentile from a full page to the next above which requests feel it."""

HIGH_FRAGMENTATION = 0.9
"""Share of neighbouring pages that lie apart above which reads of the cache lose locality."""

HIGH_RECOMPUTE = 0.05
"""Share of recomputed tokens among all computed ones above which preemption costs throughput."""


def page_utilization(engine: Engine) -> Verdict:
    """Whether the slots of the pages that requests hold are filled."""
    seen = engine.while_running("growpage_kv_page_utilization")
    if not seen:
        return unknown("no request was running")
    mean = sum(seen) / len(seen)
    if mean >= LOW_UTILIZATION:
        return ok(f"{mean:.0%} of the slots filled, on average")
    block = _block_size(engine)
    kept = sum(engine.while_running("growpage_kv_kept_tokens"))
    requests = sum(value for value in engine.values(RUNNING).values() if value)
    tokens = kept / requests
    # The last page of a request is half empty, on average, whatever else is wasted.
    expected = tokens / (tokens + block / 2)
    said = (
        f"{mean:.0%} of the slots filled, on average; a request keeps {tokens:.0f} tokens in pages "
        f"of {block}"
    )
    if expected < (1 + LOW_UTILIZATION) / 2:
        return warning(
            f"{said}: the pages are large for such requests, whose last one alone leaves "
            f"{1 - expected:.0%} empty",
            f"a smaller --block-size than {block}",
        )
    return warning(
        f"{said}: half-empty last pages explain only {1 - expected:.0%}, so pages are held that "
        "compressions have emptied, or that were reserved ahead",
        "a smaller --growpage-step, and --growpage-min-pages nearer to what requests keep",
    )


def allocation_latency(engine: Engine) -> Verdict:
    """Whether a request waits long for its next page."""
    latency = engine.histogram("growpage_page_allocation_latency_seconds")
    if not latency.count:
        return unknown("no page has been allocated yet")
    slow = latency.quantile(0.99)
    span = ", since the start" if latency.since_start else ""
    said = (
        f"99% of {latency.count:.0f} within {slow * 1e3:.1f} ms, {latency.mean * 1e3:.1f} ms on "
        f"average{span}"
    )
    if slow <= SLOW_ALLOCATION_S:
        return ok(said)
    return warning(
        f"{said}; more than {SLOW_ALLOCATION_S * 1e3:.0f} ms{_phases(engine)}",
        "a larger --block-size has fewer boundaries; if compact or measure takes the time, see "
        "whether growpage doctor on the server's machine names the model runner, the threads or "
        "the page layout",
    )


def queue(engine: Engine) -> Verdict:
    """Which limit keeps waiting requests waiting."""
    waiting = engine.mean(WAITING, reason="capacity")
    if not waits(engine):
        return ok(f"{waiting:.1f} requests waited for capacity, on average")
    usage = engine.mean(USAGE)
    running = engine.mean(RUNNING)
    said = f"{waiting:.1f} requests waited with {usage:.0%} of the pool in use, on average"
    if full_while_waiting(engine):
        return warning(
            f"{said}: the pool is full",
            "more replicas, more KV memory (--kv-cache-memory-bytes, --gpu-memory-utilization), or "
            "a tighter budget (--growpage-min-pages, --growpage-max-pages)",
        )
    limit = engine.last("growpage_max_num_seqs")
    if running >= limit - 0.5:
        return warning(
            f"{said}: {running:.1f} run and --max-num-seqs is {limit:.0f}, which is the limit, not "
            "KV memory",
            f"a larger --max-num-seqs than {limit:.0f}",
        )
    orphaned = engine.last("growpage_orphaned_pages")
    if orphaned:
        return warning(
            f"{said}: {orphaned:.0f} pages are neither free nor held",
            "see the finding on orphaned pages",
        )
    return warning(
        f"{said}: {running:.1f} of {limit:.0f} run, so neither used memory nor --max-num-seqs is "
        "the limit; the free pages are promised to those who run, or the first in the queue asks "
        "for more than are free",
        "a smaller --growpage-min-pages, which every running request is sure of, or a smaller "
        "--growpage-watermark; a larger pool for long prompts; with adapters, a larger --max-loras",
    )


def preemptions(engine: Engine) -> Verdict:
    """Whether requests are preempted, and why although there is growpage."""
    count = preemptions_of(engine)
    if not count:
        return ok("none")
    peak = peak_usage(engine)
    said = f"{count:.0f}; at most {peak:.0%} of the pool was seen in use"
    if peak < LOW:
        orphaned = engine.last("growpage_orphaned_pages")
        scattered = engine.mean("growpage_page_table_fragmentation")
        if orphaned:
            return failure(
                f"{said}: {orphaned:.0f} pages are neither free nor held",
                "restart the server to get them back, and report it with the server's log",
            )
        return warning(
            f"{said}, with no orphaned pages and a fragmentation of {scattered:.2f}: the pool "
            "fills in bursts shorter than the samples are apart",
            "a smaller --max-num-seqs or --max-num-batched-tokens evens bursts out; a shorter "
            "--watch, or scrape_interval of Prometheus, shows them",
        )
    compressed = engine.increase("growpage_compressions_total", mode="enforce")
    if not compressed:
        return warning(
            f"{said}, and nothing was compressed", "see the finding on compression under pressure"
        )
    return warning(
        f"{said}, despite {compressed:.0f} compressions: what the requests are sure of does not "
        "fit together",
        "a smaller --growpage-min-pages or --max-num-seqs, --growpage-policy elastic, or more KV "
        "memory",
    )


def recompute_share(engine: Engine) -> Verdict:
    """How much work preemption has cost."""
    again = engine.increase("growpage_recomputed_tokens_total")
    first = engine.increase("vllm:prompt_tokens_total") + engine.increase(
        "vllm:generation_tokens_total"
    )
    if not again + first:
        return unknown("nothing was computed")
    share = again / (again + first)
    said = f"{again:.0f} of {again + first:.0f} tokens ({share:.1%}) were computed again"
    if share <= HIGH_RECOMPUTE:
        return ok(said)
    return warning(
        f"{said}, after preemptions",
        "fewer preemptions (see their finding), and --enable-prefix-caching, which gives part of "
        "the work back",
    )


def orphaned_pages(engine: Engine) -> Verdict:
    """Whether pages are lost."""
    values = list(engine.values("growpage_orphaned_pages").values())
    if not values:
        raise MissingMetricError("growpage_orphaned_pages")
    if not values[-1]:
        return ok("none")
    if min(values) > 0:
        return failure(
            f"{values[-1]:.0f} pages are neither free nor held by a request, and were not at any "
            "time of the span: they leak",
            "restart the server to get them back, and report it with the server's log",
        )
    return warning(
        f"{values[-1]:.0f} pages are neither free nor held by a request; earlier there were none",
        "diagnose again over a longer span: it is a leak if they stay",
    )


def fragmentation(engine: Engine) -> Verdict:
    """How scattered the pages of requests lie."""
    seen = engine.while_running("growpage_page_table_fragmentation")
    if not seen:
        return unknown("no request was running")
    mean = sum(seen) / len(seen)
    said = f"{mean:.0%} of neighbouring pages lie apart in memory, on average"
    if mean <= HIGH_FRAGMENTATION:
        return ok(said)
    return warning(
        f"{said}; no page is lost by it, but reads of the cache lose locality",
        "a larger --block-size; a restart in a quiet hour starts with an ordered pool",
    )


def refused_prompts(engine: Engine) -> Verdict:
    """Whether prompts came that the pool cannot hold."""
    refused = engine.increase("growpage_refused_prompts_total")
    if not refused:
        return ok("none")
    return warning(
        f"{refused:.0f} prompts were longer than the whole pool"
        f" ({engine.last('growpage_kv_capacity_tokens'):.0f} tokens)",
        "more KV memory (--kv-cache-memory-bytes, --gpu-memory-utilization), or a --max-model-len "
        "that tells clients at once",
    )


def _block_size(engine: Engine) -> int:
    return int(engine.label("vllm:cache_config_info", "block_size"))


def _phases(engine: Engine) -> str:
    """The mean time of each phase of a decision, for the reader to see which is slow."""
    try:
        series = engine.find("growpage_decision_seconds_count")
    except MissingMetricError:
        return ""
    phases = sorted({each.labels["phase"] for each in series})
    times = ((name, engine.histogram("growpage_decision_seconds", phase=name)) for name in phases)
    shown = ", ".join(f"{name} {each.mean * 1e3:.1f} ms" for name, each in times if each.count)
    return f" (on average: {shown})" if shown else ""
