"""The reports that an engine sends: no counter in them ever falls."""

from __future__ import annotations

from itertools import count
from typing import Any, get_args
from unittest.mock import create_autospec

from growpage.budget.rollout import Mode
from growpage.engine.journal import Journal
from growpage.engine.manager import GrowPageManager
from growpage.engine.observations import Observations
from growpage.engine.reporter import EngineFacts, Reporter


def test_what_the_worker_confirms_is_counted_once() -> None:
    observations = Observations(wanted=True)
    journals = [Journal(mode, observations) for mode in get_args(Mode)]
    pages: Any = create_autospec(GrowPageManager, instance=True)
    pages.configure_mock(
        accounts={}, req_to_blocks={}, pages_allocated=0, total_pages=4, free_pages=4, block_size=32
    )
    facts = EngineFacts("elastic", "window", "auto", 1.0, 8)
    reporter = Reporter(facts, pages, journals, observations, count().__next__)
    seen: list[tuple[str, Any, float]] = []
    for _ in range(3):
        for journal in journals:
            if journal.mode == "enforce":
                journal.ledger.confirmed += 2
                journal.ledger.recomputed_tokens += 5
        report = reporter.report({}, "enforce")
        assert report is not None
        seen += report["counters"]
    assert [row for row in seen if row[0] == "growpage_compactions_confirmed"] == [
        ("growpage_compactions_confirmed", (), 2)
    ] * 3
    assert all(more > 0 for _, _, more in seen)
