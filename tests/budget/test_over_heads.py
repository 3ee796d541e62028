"""One figure for all heads: the same one, however the heads are spread over workers."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from growpage.budget.config import OverHeadsName
from growpage.budget.over_heads import OVER_HEADS

PLAIN = {
    "mean": lambda figures: figures.mean(axis=0),
    "q90": lambda figures: np.quantile(figures, 0.9, axis=0),
}


def test_every_name_of_the_configuration_has_one() -> None:
    assert tuple(OVER_HEADS) == get_args(OverHeadsName) == tuple(PLAIN)


@pytest.mark.parametrize("name", OVER_HEADS)
@given(
    workers=st.integers(1, 4),
    heads=st.integers(1, 30),
    n=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_all_workers_come_to_the_figure_of_all_heads(
    name: str, workers: int, heads: int, n: int, seed: int
) -> None:
    figures = np.random.default_rng(seed).normal(scale=50, size=(workers, heads, n))
    each = [OVER_HEADS[name](heads, worker, workers) for worker in range(workers)]
    shares = [one.share(torch.from_numpy(own)) for one, own in zip(each, figures, strict=True)]
    total = torch.stack(shares).sum(dim=0)
    settled = [one.settle(total).tolist() for one in each]
    assert all(found == settled[0] for found in settled)
    assert settled[0] == pytest.approx(PLAIN[name](figures.reshape(-1, n)).tolist())
