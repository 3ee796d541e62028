from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from growpage.budget.errors import ConfigError
from growpage.budget.rollout import TENANT_FIELD
from tests.engine.engines import Engine, StartEngine, prompt_of

pytestmark = pytest.mark.engine

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((20, 45, 33))]
TOKENS = 260
BUDGETS: dict[str, dict[str, Any]] = {
    "fixed": {"policy": "fixed", "budget": 128},
    "every": {"policy": "every", "min_pages": 3, "growth_rate": 0.25},
    "growpage": {"policy": "growpage", "min_pages": 3, "tau": -28.0},
    "elastic": {"policy": "elastic", "min_pages": 3},
}
QUANTILE = {**BUDGETS["growpage"], "tau_quantile": 0.5}

UNLIMITED = "max_growth_rate: null\n"  # the tiny models are fast

Staged = Callable[..., Engine]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture
def staged(start_engine: StartEngine, stages: Path) -> Staged:
    """The engine of a policy, at a given stage of its rollout."""

    def staged(
        name: str, text: str, pages: int = 64, budget: dict[str, Any] | None = None
    ) -> Engine:
        budget = budget or BUDGETS[name]
        path = stages / f"{name}-{pages}.yaml"
        path.write_text(UNLIMITED)
        operations = {"rollout": str(path)}
        engine = start_engine(
            pages=pages,
            dtype="float32",  # what others hold changes the order of sums, and bfloat16 shows it
            scheduler_cls="growpage.engine.scheduler.GrowPageScheduler",
            worker_cls="growpage.engine.worker.GrowPageCPUWorker",
            additional_config={"growpage": budget, "growpage_operations": operations},
        )
        turn(engine, text)
        return engine

    return staged


def turn(engine: Engine, text: str) -> None:
    """Change the rollout file, and let the engine look at it with its next step."""
    watch = engine.scheduler.enforcement.rollout
    watch.path.write_text(UNLIMITED + text if "growth_rate" not in text else text)
    watch._next_look = 0.0


def ledgers(engine: Engine) -> tuple[Any, Any]:
    enforced, watched = engine.scheduler.enforcement.journals
    return enforced.ledger, watched.ledger


def counts(ledger: Any) -> tuple[int, int, int]:
    return ledger.compressions, ledger.evicted_tokens, ledger.growths


def generate(
    engine: Engine, tenants: list[str | None], watch: Callable[[int], None] = lambda step: None
) -> list[list[int]]:
    """Greedy tokens of one request for each tenant, all at once."""
    steps = count(1)
    return engine.generate(
        [PROMPTS[index % len(PROMPTS)] for index in range(len(tenants))],
        TOKENS,
        watch=lambda: watch(next(steps)),
        extra_args=[tenant and {TENANT_FIELD: tenant} for tenant in tenants],
    )


@pytest.fixture(scope="module")
def plain_tokens(start_engine: StartEngine) -> list[list[int]]:
    return start_engine(dtype="float32").generate(PROMPTS, TOKENS)


@pytest.mark.parametrize("name", BUDGETS)
def test_observed_requests_are_served_as_by_plain_vllm(
    staged: Staged, plain_tokens: list[list[int]], name: str
) -> None:
    engine = staged(name, "mode: observe")
    enforced, watched = ledgers(engine)
    before = counts(enforced), watched.compressions
    assert generate(engine, [None] * 3) == plain_tokens
    assert counts(enforced) == before[0]
    assert (watched.compressions > before[1]) == (name != "elastic"), "it has memory enough"


@pytest.mark.parametrize("name", ["fixed", "every"])
def test_what_is_observed_is_what_would_have_been_done(staged: Staged, name: str) -> None:
    """For policies that look at no measurement: after an eviction those would differ."""
    engine = staged(name, "mode: observe")
    enforced, watched = ledgers(engine)
    start = counts(enforced), counts(watched)
    generate(engine, [None] * 3)
    turn(engine, "mode: enforce")
    generate(engine, [None] * 3)
    done = [after - before for before, after in zip(start[0], counts(enforced), strict=True)]
    seen = [after - before for before, after in zip(start[1], counts(watched), strict=True)]
    assert done == seen
    assert done[0] > 0


def test_in_a_tight_pool_observed_requests_are_preempted_as_by_plain_vllm(
    staged: Staged, start_engine: StartEngine
) -> None:
    plain = start_engine(pages=33, dtype="float32")
    expected = plain.generate([*PROMPTS, *PROMPTS], TOKENS)
    engine = staged("elastic", "mode: observe", pages=33)
    assert generate(engine, [None] * 6) == expected
    enforced, watched = ledgers(engine)
    assert enforced.preemptions > 0
    assert enforced.compressions == 0
    assert watched.by_reason["pool"] > 0, "elastic would have shared the pool out"


def test_a_stage_changes_under_running_requests(
    staged: Staged, plain_tokens: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    engine = staged("fixed", "mode: observe\nchanged_by: alice")
    enforced, _ = ledgers(engine)
    before = enforced.compressions
    at: dict[int, int] = {}

    def watch(step: int) -> None:
        at[step] = enforced.compressions - before
        if step == 180:
            turn(engine, "mode: enforce\nchanged_by: bob")

    with heard(caplog):
        tokens = generate(engine, [None] * 3, watch)
    assert at[180] == 0
    assert at[182] == 3, "each is compressed to its budget at once"
    assert engine.scheduler.ledger.by_reason["over_capacity"] >= 3
    assert [each[:180] for each in tokens] == [each[:180] for each in plain_tokens]
    assert tokens != plain_tokens
    (line,) = {r.getMessage() for r in caplog.records if "changed by bob" in r.getMessage()}
    assert "mode was observe, is enforce" in line


def test_back_to_observe_nothing_more_is_evicted(staged: Staged) -> None:
    engine = staged("fixed", "mode: enforce")
    enforced, _ = ledgers(engine)
    at: dict[int, int] = {}

    def watch(step: int) -> None:
        at[step] = enforced.compressions
        if step == 180:
            turn(engine, "mode: observe")

    generate(engine, [None] * 3, watch)
    assert at[180] > at[1]
    assert enforced.compressions == at[181] == at[180]


def test_only_selected_tenants_are_compressed(
    staged: Staged, plain_tokens: list[list[int]]
) -> None:
    engine = staged("fixed", "mode: enforce\nonly: {tenants: [red]}")
    evicted: dict[str, int] = {}

    def watch(step: int) -> None:
        for name, account in engine.scheduler.pages.accounts.items():
            evicted[name.split("-")[1]] = account.evicted
            assert account.tenant == {"0": "red", "1": "blue", "2": None}[name.split("-")[1]]

    tokens = generate(engine, ["red", "blue", None], watch)
    assert evicted["0"] > 0
    assert evicted["1"] == evicted["2"] == 0
    assert tokens[1:] == plain_tokens[1:]
    assert tokens[0] != plain_tokens[0]


def test_a_tenant_over_its_quota_stops_growing(staged: Staged) -> None:
    engine = staged("elastic", "mode: enforce\nquotas: {red: 7}")
    enforced, _ = ledgers(engine)
    most: dict[str, int] = {}

    def watch(step: int) -> None:
        held: dict[str, int] = {}
        for name, account in engine.scheduler.pages.accounts.items():
            tenant = account.tenant or ""
            held[tenant] = held.get(tenant, 0) + engine.scheduler.pages.pages(name)
        for tenant, pages in held.items():
            most[tenant] = max(most.get(tenant, 0), pages)

    generate(engine, ["red", "red", "blue"], watch)
    assert most["red"] == 7
    assert most["blue"] > 7
    assert enforced.refused_by_reason["quota"] > 0
    assert enforced.by_reason["quota"] > 0


def test_growth_may_be_too_fast(staged: Staged) -> None:
    engine = staged("elastic", "mode: enforce\nmax_growth_rate: 0.001")
    enforced, _ = ledgers(engine)
    before = enforced.growths
    generate(engine, [None])
    assert enforced.growths - before == 1, "the first page is always there to be taken"
    assert enforced.refused_by_reason["growth_rate"] > 0
    assert enforced.by_reason["growth_rate"] > 0


def test_a_file_gone_bad_changes_nothing(staged: Staged, caplog: pytest.LogCaptureFixture) -> None:
    engine = staged("fixed", "mode: observe")
    watch = engine.scheduler.enforcement.rollout
    watch.look()
    turn(engine, "mode: sometimes")
    with heard(caplog):
        assert not watch.look()
    assert watch.current.mode == "observe"
    (line,) = {r.getMessage() for r in caplog.records if r.levelno == logging.ERROR}
    assert "stays as it is" in line
    assert "'sometimes'" in line


def test_a_missing_file_is_refused_at_start(staged: Staged, stages: Path) -> None:
    from growpage.engine.rollout import RolloutWatch

    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        RolloutWatch(stages / "nowhere.yaml", frozenset({"chat"}), lambda: 0.0)


class heard:
    """While it lasts, pytest hears what vLLM's loggers keep to themselves."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._handler = caplog.handler

    def __enter__(self) -> None:
        logging.getLogger("vllm").addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("vllm").removeHandler(self._handler)


def test_what_is_only_watched_teaches_the_quantile_nothing(staged: Staged) -> None:
    engine = staged("quantile", "mode: observe", budget=QUANTILE)
    engine.generate(PROMPTS, TOKENS)
    _, watched = ledgers(engine)
    assert watched.growths_by_reason["signal"] + watched.by_reason["boundary"] > 0
    learned = vars(engine.scheduler.policy)["_deltas"]
    assert list(learned._last) == []
    turn(engine, "mode: enforce")
    engine.generate(PROMPTS, TOKENS)
    assert len(learned._last) > 0
