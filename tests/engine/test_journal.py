from __future__ import annotations

import json
import logging

import pytest

from growpage.budget.demand import Demand
from growpage.engine.journal import KEPT, Journal
from growpage.engine.observations import Observations

DEMAND = Demand(short=40.0, long=44.5, cached=127, losses=(0.02, 0.07))
LOGGER = logging.getLogger("vllm.growpage.engine.journal")


@pytest.fixture
def observations() -> Observations:
    return Observations(wanted=True)


@pytest.fixture
def journal(observations: Observations) -> Journal:
    return Journal("enforce", observations)


def compress(journal: Journal, request_id: str = "a", loss: float | None = 0.02) -> None:
    journal.compressed(request_id, "boundary", 4, 4, evicted=32, demand=DEMAND, loss=loss)


def test_decisions_are_counted_by_reason(journal: Journal) -> None:
    compress(journal)
    journal.grown("a", "signal", 4, DEMAND)
    journal.refused("a", "quota", 5, evicts=True)
    assert journal.ledger.by_reason == {"boundary": 1}
    assert journal.ledger.evicted_tokens == 32
    assert journal.ledger.growths_by_reason == {"signal": 1}
    assert journal.ledger.refused_by_reason == {"quota": 1}
    assert [each["action"] for each in journal.recent] == ["compress", "grow"]


def test_a_refusal_is_taken_down_where_nothing_can_be_evicted(journal: Journal) -> None:
    journal.refused("a", "max_pages", 5, evicts=False)
    (decision,) = journal.recent
    assert (decision["action"], decision["reason"]) == ("refuse", "max_pages")
    assert decision["before"] == decision["after"] == 5


def test_a_predicted_loss_is_observed_where_there_is_one(
    journal: Journal, observations: Observations
) -> None:
    compress(journal)
    compress(journal, loss=None)
    assert observations.drain() == [("growpage_predicted_loss", ("enforce",), [0.02])]
    assert observations.drain() == []


def test_at_debug_level_each_decision_is_a_line_of_json(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    LOGGER.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, LOGGER.name):
            compress(journal)
        assert caplog.records == []
        with caplog.at_level(logging.DEBUG, LOGGER.name):
            compress(journal, "chatcmpl-1")
    finally:
        LOGGER.removeHandler(caplog.handler)
    line = caplog.records[0].getMessage()
    written = json.loads(line.removeprefix("growpage decision "))
    assert written == journal.recent[-1]
    assert written["request"] == "chatcmpl-1"
    assert (written["delta"], written["loss"], written["evicted"]) == (-4.5, 0.02, 32)


def test_only_the_last_decisions_are_kept(journal: Journal) -> None:
    for number in range(KEPT + 5):
        compress(journal, str(number))
    assert [each["request"] for each in journal.recent] == [str(n) for n in range(5, KEPT + 5)]
    assert journal.ledger.compressions == KEPT + 5


def test_nobody_collects_what_nobody_wants() -> None:
    unwanted = Observations(wanted=False)
    compress(Journal("observe", unwanted))
    assert unwanted.drain() == []
