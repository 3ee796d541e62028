"""Time per token by logical length."""

from __future__ import annotations

import pytest

from growpage.bench.throughput.by_length import BIN_TOKENS, FEWEST_BINS, time_by_length
from growpage.bench.throughput.latency import Trace
from tests.bench.throughput.made_up import trace

LONG = BIN_TOKENS * FEWEST_BINS


def steps(of: list[float], tokens: int = 1) -> Trace:
    """An answer whose events come after these seconds, with so many tokens each."""
    now, events = 0.0, []
    for seconds in of:
        now += seconds
        events.append((now, tokens))
    return trace(events)


def test_each_token_counts_at_the_length_that_it_was_computed_at() -> None:
    # The prompt has 10 tokens, so the first event's token is the 11th of all.
    seconds = [9.0] + [0.1] * (BIN_TOKENS - 11) + [0.2] * (LONG - BIN_TOKENS)
    found = time_by_length([steps(seconds)])
    assert list(found) == [BIN_TOKENS * place for place in range(FEWEST_BINS)]
    assert found[0] == pytest.approx(0.1)
    assert [found[BIN_TOKENS], found[LONG - BIN_TOKENS]] == pytest.approx([0.2, 0.2])


def test_events_with_several_tokens_are_divided() -> None:
    found = time_by_length([steps([0.4] * (LONG // 4), tokens=4)])
    assert found[BIN_TOKENS] == pytest.approx(0.1)


def test_requests_share_the_bins_and_failures_do_not_count() -> None:
    slow = steps([0.3] * LONG).model_copy(update={"error": "cut off"})
    quick = [steps([seconds] * LONG) for seconds in (0.1, 0.2, 0.2)]
    assert time_by_length([slow, *quick])[BIN_TOKENS] == pytest.approx(0.2)


def test_short_answers_show_nothing() -> None:
    assert time_by_length([steps([0.1] * (LONG - 11))]) == {}
    assert time_by_length([]) == {}
