"""The running quantile against the quantile of a list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from growpage.budget.running_quantile import RunningQuantile

values = st.lists(st.integers(-5, 5).map(float) | st.floats(-1e6, 1e6), max_size=60)


@given(values, st.floats(0.01, 0.99), st.integers(3, 20))
def test_it_is_the_quantile_of_the_last_values(seen: list[float], share: float, size: int) -> None:
    running = RunningQuantile(share, size, least=3)
    for count, value in enumerate(seen, start=1):
        running.add(value)
        last = seen[max(count - size, 0) : count]
        if count < 3:
            assert running.value is None
        else:
            assert running.value == np.quantile(last, share, method="inverted_cdf")


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_as_many_exceed_it_as_it_says(share: float) -> None:
    """Of values in no order, whatever their scale and place."""
    drawn = np.random.default_rng(0).normal(loc=-40, scale=7, size=4000)
    running = RunningQuantile(share)
    exceeding = 0
    for value in drawn.tolist():
        threshold = running.value
        exceeding += threshold is not None and value > threshold
        running.add(value)
    assert exceeding / len(drawn) == pytest.approx(1 - share, abs=0.03)
