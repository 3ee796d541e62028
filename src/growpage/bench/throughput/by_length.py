"""Time per token by logical length: what a long answer costs as it goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median

from growpage.bench.throughput.latency import Trace

FEWEST_BINS = 8
"""Of the longest request; below, its length makes no difference that could be shown."""

BIN_TOKENS = 256


def time_by_length(traces: Iterable[Trace]) -> Mapping[int, float]:
    """Seconds per token, the median over all tokens of like length.

    Args:
        traces: those of one contender.

    Returns:
        By logical length (prompt and answer, in tokens) where a bin of :data:`BIN_TOKENS` begins;
        nothing if no request has :data:`FEWEST_BINS` of them. The first token of an answer is left
        out, since it waits for the prompt.
    """
    found: dict[int, list[float]] = defaultdict(list)
    longest = 0
    for trace in traces:
        if trace.failure is not None:
            continue
        length = trace.prompt_tokens
        for (before, first), (after, tokens) in pairwise(trace.events):
            length += first
            found[length // BIN_TOKENS].append((after - before) / tokens)
        longest = max(longest, trace.prompt_tokens + trace.tokens)
    if longest < FEWEST_BINS * BIN_TOKENS:
        return {}
    return {BIN_TOKENS * place: median(found[place]) for place in sorted(found)}
