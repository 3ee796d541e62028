"""What a worker makes of its heads' figures, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from growpage.bench.decision_cost import PAGE, Bench, Shape
from growpage.budget.config import BudgetConfig
from growpage.budget.demand import Demand

CACHED = 8 * PAGE


def measured(**settings: Any) -> Demand:
    """The demand of a request over random pages, the same ones each time."""
    torch.manual_seed(0)
    config = BudgetConfig.of({"policy": "elastic", **settings})
    bench = Bench(Shape("tiny", 2, 4, 2, 64), config, CACHED // PAGE, torch.float32, "auto")
    table = torch.arange(CACHED // PAGE)
    report = bench.budgeter.measure(bench.names[0], 0, bench.position, CACHED, table)
    assert report is not None
    return report.settle().demand


def test_demanding_heads_decide_what_is_needed_and_all_heads_what_is_lost() -> None:
    by_default, mean = measured(), measured(demand_over_heads="mean")
    assert by_default == measured(demand_over_heads="q90")
    assert mean.short < by_default.short <= CACHED
    assert mean.long < by_default.long <= CACHED
    assert len(mean.losses) == 4 and mean.losses == by_default.losses
    assert mean.delta == pytest.approx(mean.short - mean.long)
