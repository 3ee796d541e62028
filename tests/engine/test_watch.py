"""A worker that never compacts although pages are short is reported, once and by name."""

from __future__ import annotations

import pytest

from growpage.engine.messages import StepAnswer
from growpage.engine.watch import PATIENCE, CompactionWatch


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def settle(watch: CompactionWatch, steps: int, planned: int, answer: StepAnswer | None) -> None:
    for _ in range(steps):
        watch.settled(planned, answer)


def test_a_runner_that_carries_out_no_plan(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompactionWatch("a.Worker")
    settle(watch, PATIENCE - 1, 1, StepAnswer("SomeRunner", 0))
    assert warnings(caplog) == []
    settle(watch, 3 * PATIENCE, 1, StepAnswer("SomeRunner", 0))
    (warning,) = warnings(caplog)
    assert f"planned {PATIENCE} compactions and seen 0 preemptions, but SomeRunner has" in warning


def test_a_worker_that_never_answers(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompactionWatch("a.Worker")
    watch.settled(1, None)
    settle(watch, PATIENCE, 0, None)
    (warning,) = warnings(caplog)
    assert "planned 1 compactions" in warning
    assert "the model runner of a.Worker, which never answers" in warning


def test_preemptions_without_any_compaction(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompactionWatch("a.Worker")
    settle(watch, 2 * PATIENCE, 0, StepAnswer("SomeRunner", 0))
    assert warnings(caplog) == []
    watch.preempted()
    settle(watch, PATIENCE, 0, StepAnswer("SomeRunner", 0))
    (warning,) = warnings(caplog)
    assert "planned 0 compactions and seen 1 preemptions, but SomeRunner has" in warning


def test_one_compaction_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompactionWatch("a.Worker")
    settle(watch, PATIENCE - 1, 1, StepAnswer("SomeRunner", 0))
    watch.settled(1, StepAnswer("SomeRunner", 2))
    watch.preempted()
    settle(watch, 3 * PATIENCE, 1, None)
    assert warnings(caplog) == []
