"""Who is looked at before a step: the calendar itself, and that it changes no decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from growpage.budget.rollout import Rollout
from growpage.engine.boundary_calendar import BoundaryCalendar
from growpage.engine.scheduler import BudgetMixin
from tests.engine.full_scan import scan_fully
from tests.engine.loads import BLOCK, Load
from tests.engine.tiny_models import tiny_llama

BUDGETS: dict[str, dict[str, Any]] = {
    "fixed": {"policy": "fixed", "budget": 16},
    "growpage": {"policy": "growpage", "max_pages": 6, "warmup": 1},
    "growpage, long steps": {"policy": "growpage", "step": 8, "tau": -20.0},
    "every": {"policy": "every", "growth_rate": 0.5, "track_entropy": True},
    "elastic": {"policy": "elastic", "warmup": 5},
    "elastic, least loss": {"policy": "elastic", "giver": "least_loss", "young": 8},
    "elastic, widest margin": {"policy": "elastic", "giver": "widest_margin", "watermark": 3},
    "elastic, limited": {"policy": "elastic", "max_pages": 8, "floor": "promised"},
    "elastic, small": {
        "policy": "elastic",
        "protect_prompt": False,
        "min_pages": 2,
        "recent": 3,
        "warmup": 1,
        "admit_pages": 4,
    },
}


@pytest.fixture(scope="session")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    init_none_hash(sha256)
    folder = tiny_llama(tmp_path_factory)
    config = EngineArgs(
        str(folder), skip_tokenizer_init=True, max_model_len=160, max_num_seqs=12
    ).create_engine_config()
    config.cache_config.block_size = BLOCK
    return config


@pytest.mark.parametrize(("staged", "seed"), [(False, 0), (True, 1)], ids=["enforced", "staged"])
@pytest.mark.parametrize("budget", BUDGETS.values(), ids=list(BUDGETS))
def test_decisions_are_those_of_a_full_scan(
    vllm_config: Any, tmp_path: Path, budget: dict[str, Any], seed: int, staged: bool
) -> None:
    """Step by step on one load, which holds all that may happen to requests between two steps."""
    stages = [tmp_path / f"{side}.json" if staged else None for side in ("quick", "full")]
    for stage in stages:
        if stage is not None:
            stage.write_text("{}")
    load, scanned = (Load(vllm_config, budget, seed, stage) for stage in stages)
    scan_fully(scanned.scheduler.enforcement)
    compressions = 0
    for _ in range(120):
        steps = load.happen()
        assert scanned.happen() == steps
        for _ in range(steps):
            seen, expected = load.step(), scanned.step()
            assert (seen is None) == (expected is None)
            if seen is None or expected is None:
                continue
            (output, message), (other_output, other) = seen, expected
            assert output.num_scheduled_tokens == other_output.num_scheduled_tokens
            assert message == other
            assert list(message.measure) == list(other.measure)
            compressions += len(message.plans)
            sums_are_right(load.scheduler)
            accounts_are_equal(load.scheduler, scanned.scheduler)
            nobody_is_forgotten(load.scheduler)
    assert compressions > 0
    for journal, expected_journal in zip(
        load.scheduler.enforcement.journals, scanned.scheduler.enforcement.journals, strict=True
    ):
        assert journal.ledger == expected_journal.ledger
        for decision in (*journal.recent, *expected_journal.recent):
            decision["time"] = 0.0
        assert journal.recent == expected_journal.recent


def test_another_stage_of_the_rollout_does_not_wait_for_a_boundary(
    vllm_config: Any, tmp_path: Path
) -> None:
    """A request that has grown, and comes under its budget anew far from its next boundary."""
    stage = tmp_path / "stage.json"
    stage.write_text(Rollout(max_growth_rate=None).model_dump_json())
    load = Load(vllm_config, {"policy": "every", "growth_rate": 1.0}, 5, stage)
    load.add("r", list(range(20)), 100)
    enforced, watched = Rollout(max_growth_rate=None), Rollout(mode="observe")
    while load.scheduler.requests["r"].num_computed_tokens % BLOCK != 1 or load.steps < 50:
        assert load.step() is not None
    load.turn(watched)
    load.step()
    load.turn(enforced)
    seen = load.step()
    assert seen is not None
    (plan,) = seen[1].plans
    assert plan.tokens % BLOCK != 0, "before its boundary"


def sums_are_right(scheduler: BudgetMixin) -> None:
    """What is kept as it changes, against adding up."""
    pages = scheduler.pages
    evicted = {name: a.evicted for name, a in pages.accounts.items() if a.evicted}
    assert scheduler._evicted == evicted
    for name, account in pages.accounts.items():
        assert account.held == pages.pages(name)
    for book in (pages, scheduler.enforcement._shadow):
        accounts = book.accounts
        assert book.tally.promised == sum(
            max(account.promised - account.held, 0) for account in accounts.values()
        )
        for tenant in {account.tenant for account in accounts.values()}:
            held = sum(a.held for a in accounts.values() if a.tenant == tenant)
            assert book.tally.by_tenant[tenant] == held
        assert sum(book.tally.by_tenant.values()) == sum(a.held for a in accounts.values())


def accounts_are_equal(scheduler: BudgetMixin, other: BudgetMixin) -> None:
    """But for the time of a boundary."""
    for book, expected in (
        (scheduler.pages, other.pages),
        (scheduler.enforcement._shadow, other.enforcement._shadow),
    ):
        assert list(book.accounts) == list(expected.accounts)
        for account, same in zip(book.accounts.values(), expected.accounts.values(), strict=True):
            assert (account.boundary_at is None) == (same.boundary_at is None)
            same.boundary_at = account.boundary_at
            assert account == same


def nobody_is_forgotten(scheduler: BudgetMixin) -> None:
    """Everybody who runs is in the calendar, in the order of scheduling, and hardly anybody else.

    A streaming session that waits for input stays there until it would be due.
    """
    places = scheduler.enforcement._calendar._places
    filed = sorted(places, key=places.__getitem__)
    running = set(scheduler.running)
    assert [request for request in filed if request in running] == scheduler.running
    assert all(request.resumable for request in filed if request not in running)


# ---- the calendar --------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(st.data())
def test_whoever_is_filed_is_due_in_time_and_in_order(data: st.DataObject) -> None:
    """Against a list of who is due when."""
    calendar: BoundaryCalendar[str] = BoundaryCalendar()
    order: list[str] = []
    due_at: dict[str, int] = {}
    now = 0
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["enter", "leave", "file", "file_all", "pass", "pass"])):
            case "enter":
                name = data.draw(st.sampled_from("abcdef"))
                calendar.enter(name)
                order = [*(other for other in order if other != name), name]
                due_at[name] = now + 1
            case "leave":
                name = data.draw(st.sampled_from("abcdef"))
                calendar.leave(name)
                order = [other for other in order if other != name]
            case "file" if order:
                name, passes = data.draw(st.sampled_from(order)), data.draw(st.integers(-1, 5))
                calendar.file(name, passes)
                due_at[name] = now + max(passes, 1)
            case "file_all":
                calendar.file_all()
                due_at = dict.fromkeys(order, now + 1)
            case "pass":
                now += 1
                assert calendar.begin_pass() == [n for n in order if due_at[n] <= now]


def test_nothing_is_kept_of_those_who_left() -> None:
    calendar: BoundaryCalendar[int] = BoundaryCalendar()
    for entry in range(100):
        calendar.enter(entry)
        calendar.file(entry, entry)
        calendar.leave(entry)
    calendar.leave(7)
    assert not (calendar._filed or calendar._pass_of or calendar._places)
