"""The metrics that the autoscaler reads, under the names of vLLM 0.6 to 0.33 and of GrowPage."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from growpage.budget.errors import ConfigError


class Signal(StrEnum):
    """What is measured of each pod."""

    UP = "up"
    KV_USAGE = "kv_usage"
    WAITING = "waiting"
    WAITING_BY_REASON = "waiting_by_reason"
    RUNNING = "running"
    PREEMPTIONS = "preemptions"
    MAX_NUM_SEQS = "max_num_seqs"
    LOGICAL_TOKENS = "logical_tokens"
    CAPACITY_TOKENS = "capacity_tokens"
    GROWTH_REFUSED = "growth_refused"
    LOSS_SUM = "loss_sum"
    LOSS_COUNT = "loss_count"


METRICS: Final[Mapping[Signal, tuple[str, ...]]] = {
    Signal.UP: ("up",),
    # The second is vLLM's name before 0.10.
    Signal.KV_USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    Signal.WAITING: ("vllm:num_requests_waiting",),
    Signal.WAITING_BY_REASON: ("vllm:num_requests_waiting_by_reason",),
    Signal.RUNNING: ("vllm:num_requests_running",),
    Signal.PREEMPTIONS: ("vllm:num_preemptions_total",),
    Signal.MAX_NUM_SEQS: ("growpage_max_num_seqs",),
    Signal.LOGICAL_TOKENS: ("growpage_kv_logical_tokens",),
    Signal.CAPACITY_TOKENS: ("growpage_kv_capacity_tokens",),
    Signal.GROWTH_REFUSED: ("growpage_growth_refused_total",),
    Signal.LOSS_SUM: ("growpage_predicted_loss_sum",),
    Signal.LOSS_COUNT: ("growpage_predicted_loss_count",),
}
"""By signal, the newest name first."""

NEVER_EXISTED: Final[Mapping[str, str]] = {
    # Copied from one public autoscaler to the next.
    "vllm:gpu_cache_usage_factor": "vllm:kv_cache_usage_perc",
    "vllm:gpu_kv_cache_usage": "vllm:kv_cache_usage_perc",
    "vllm:kv_cache_usage": "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions": "vllm:num_preemptions_total",
    "growpage_growth_refused": "growpage_growth_refused_total",
}
"""Wrong names that are in use, and what is meant; a counter without its ``_total`` is no metric."""

LABELS: Final[Mapping[Signal, Mapping[str, str]]] = {
    # What a limit, a quota or a mere observation refuses, more replicas do not grant.
    Signal.GROWTH_REFUSED: {"reason": "pool", "mode": "enforce"},
    Signal.LOSS_SUM: {"mode": "enforce"},
    Signal.LOSS_COUNT: {"mode": "enforce"},
}
"""Labels that a signal's series must have, besides those of the model."""


def spellings(name: str) -> tuple[str, ...]:
    """A metric's name, and what it becomes on its way to some Prometheus servers.

    Where Prometheus 2 asks for OpenMetrics, prometheus_client since 0.22 writes ``vllm_`` for
    ``vllm:`` (prometheus/client_python issue 1177), and that is what is stored.
    """
    return (name, name.replace(":", "_", 1)) if name.startswith("vllm:") else (name,)


KNOWN: Final = frozenset(
    spelling for names in METRICS.values() for name in names for spelling in spellings(name)
)

_OURS_TO_JUDGE = ("vllm:", "vllm_", "growpage_", "growpage:")


def check_name(signal: Signal, name: str) -> str:
    """``name``, if it may measure ``signal``; a recording rule of the user's own may.

    Raises:
        ConfigError: it looks like a metric of vLLM or GrowPage and is none, or measures something
            else; the message says which is meant.
    """
    if any(name in spellings(known) for known in METRICS[signal]):
        return name
    if name in KNOWN:
        raise ConfigError(f"{name} does not measure {signal}: use {METRICS[signal][0]}")
    spelled = name.replace("vllm_", "vllm:", 1) if name.startswith("vllm_") else name
    if spelled in NEVER_EXISTED:
        raise ConfigError(f"{name} does not exist: did you mean {NEVER_EXISTED[spelled]}?")
    if name.startswith(_OURS_TO_JUDGE):
        close = get_close_matches(name, METRICS[signal], n=1, cutoff=0.0)
        raise ConfigError(f"{name} is no known metric: did you mean {close[0]}?")
    return name
