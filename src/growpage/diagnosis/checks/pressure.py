"""What several checks ask first: does an engine want for KV memory, and how is it set."""

from __future__ import annotations

from growpage.diagnosis.evidence import Engine

FULL = 0.9
"""Share of the pool's pages in use above which it counts as full."""

LOW = 0.7
"""Share of the pool's pages in use below which there is memory left."""

WAITING = "vllm:num_requests_waiting_by_reason"
USAGE = "vllm:kv_cache_usage_perc"


def preemptions(engine: Engine) -> float:
    """Preemptions within the span."""
    return engine.increase("vllm:num_preemptions_total")


def peak_usage(engine: Engine) -> float:
    """The largest share of the pool that was seen in use."""
    return max(engine.values(USAGE).values(), default=0.0)


def waits(engine: Engine) -> bool:
    """Whether requests waited for capacity at half of the samples or more."""
    values = engine.values(WAITING, reason="capacity")
    return bool(values) and len(_waiting_times(engine)) * 2 >= len(values)


def full_while_waiting(engine: Engine) -> bool:
    """Whether the pool was full at half of the samples at which requests waited, or more."""
    usage = engine.values(USAGE)
    times = _waiting_times(engine)
    return sum(usage.get(time, 0.0) >= FULL for time in times) * 2 >= len(times) > 0


def under_pressure(engine: Engine) -> bool:
    """Whether requests were preempted, or waited while the pool was full."""
    return preemptions(engine) > 0 or (waits(engine) and full_while_waiting(engine))


def mode(engine: Engine) -> str:
    """``observe`` or ``enforce``."""
    return engine.label("growpage_mode_info", "mode")


def policy(engine: Engine) -> str:
    """Who decides at a capacity boundary."""
    return engine.label("growpage_mode_info", "policy")


def _waiting_times(engine: Engine) -> list[float]:
    values = engine.values(WAITING, reason="capacity")
    return [time for time, value in values.items() if value > 0]
