"""The arithmetic of forced replays."""

from __future__ import annotations

import math

import pytest
import torch

from growpage.bench.divergence import divergence, exact_divergence
from growpage.bench.forced_replay import poisson_arrivals


def test_no_divergence_from_itself_and_the_whole_kl_where_all_is_watched() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    q = torch.tensor([[0.25, 0.25, 0.5], [0.1, 0.2, 0.7]])
    assert divergence(p.log(), p.log()).tolist() == pytest.approx([0, 0], abs=1e-6)
    whole = (p * (p / q).log()).sum(-1).tolist()
    assert divergence(p.log(), q.log()).tolist() == pytest.approx(whole, abs=1e-5)


def test_what_is_not_watched_counts_as_one_token() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.1, 0.1]]), torch.tensor([[0.4, 0.2, 0.1, 0.3]])
    merged_p, merged_q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.4, 0.2, 0.4]])
    expected = (merged_p * (merged_p / merged_q).log()).sum().item()
    assert divergence(p[:, :2].log(), q[:, :2].log()).item() == pytest.approx(expected, abs=1e-6)


def test_the_whole_divergence_counts_every_token() -> None:
    p = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    q = torch.tensor([[0.4, 0.2, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]])
    expected = (p * (p / q).log()).sum(-1).tolist()
    assert exact_divergence(p.log(), q.log()).tolist() == pytest.approx(expected, abs=1e-6)


def test_what_the_reference_cannot_say_adds_nothing() -> None:
    p, q = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[0.25, 0.5, 0.25, 0.0]])
    expected = 0.5 * math.log(2)
    assert exact_divergence(p.log(), q.log()).item() == pytest.approx(expected, abs=1e-6)


def test_arrivals_start_at_zero_and_keep_the_mean_gap() -> None:
    steps = poisson_arrivals(2000, 12.0, seed=3)
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert steps[-1] / 1999 == pytest.approx(12, rel=0.1)
    assert steps != poisson_arrivals(2000, 12.0, seed=4)
