"""Scheduler and page accounting under random loads, with a worker that checks every page it reads.

What must hold after every step, whatever arrives, is aborted, is preempted or is shared: each page
is free or owned, and the counts add up; compaction writes private pages only; usage stays within
bounds; and everybody finishes.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from growpage.budget.config import BudgetConfig
from growpage.engine.messages import ATTRIBUTE
from growpage.engine.scheduler import BudgetMixin, GrowPageAsyncScheduler, GrowPageScheduler
from growpage.engine.spec import GrowPageSpec
from tests.engine.stub_worker import StubWorker
from tests.engine.tiny_models import tiny_llama

BLOCK = 4
LONGEST = 160
BUDGETS: list[dict[str, Any]] = [
    {"policy": "fixed", "budget": 16},
    {"policy": "fixed", "budget": 24, "step": 8, "protect_prompt": False},
    {"policy": "growpage"},
    {"policy": "growpage", "tau_quantile": 0.5},
    {"policy": "growpage", "max_pages": 6, "warmup": 1},
    {"policy": "every", "growth_rate": 0.5},
    {"policy": "elastic"},
    {"policy": "elastic", "giver": "least_loss", "floor_loss": 0.5},
    {"policy": "elastic", "giver": "widest_margin", "floor": "promised", "admit_pages": 6},
    {"policy": "elastic", "watermark": 3, "max_pages": 12},
    {"policy": "elastic", "protect_prompt": False, "min_pages": 2, "step": 4, "recent": 3},
    {"policy": "entropy", "max_pages": 12},
]


@pytest.fixture(scope="session", autouse=True)
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    Machine.folder = str(tiny_llama(tmp_path_factory))


@cache
def vllm_config(folder: str) -> Any:
    init_none_hash(sha256)
    config = EngineArgs(
        folder, skip_tokenizer_init=True, max_model_len=LONGEST, max_num_seqs=6
    ).create_engine_config()
    config.cache_config.block_size = BLOCK
    return config


class Machine(RuleBasedStateMachine):
    """One scheduler, its pages, and the stub worker."""

    folder = ""

    @initialize(
        budget=st.sampled_from(BUDGETS),
        asynchronous=st.booleans(),
        caching=st.booleans(),
        pages=st.integers(7, 40),
        batch=st.sampled_from([8, 32, 256]),
        seed=st.integers(0, 1000),
    )
    def start(
        self,
        budget: dict[str, Any],
        asynchronous: bool,
        caching: bool,
        pages: int,
        batch: int,
        seed: int,
    ) -> None:
        chosen = {"sink": 1, "recent": 2, "window": 2, "min_pages": 3, **budget}
        config = copy.deepcopy(vllm_config(self.folder))
        config.additional_config = {"growpage": chosen}
        config.cache_config.enable_prefix_caching = caching
        config.cache_config.num_gpu_blocks = pages + 1
        config.scheduler_config.max_num_batched_tokens = batch
        config.scheduler_config.max_num_scheduled_tokens = batch
        spec = GrowPageSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
        scheduler_cls = GrowPageAsyncScheduler if asynchronous else GrowPageScheduler
        self.scheduler: BudgetMixin = scheduler_cls(
            config,
            KVCacheConfig(
                pages + 1, [], [KVCacheGroupSpec(["layer"], spec)], hash_block_size=BLOCK
            ),
            StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.worker = StubWorker(BudgetConfig.of(chosen), BLOCK, seed)
        self.depth = 2 if asynchronous else 1
        self.queue: deque[tuple[Any, Any]] = deque()
        self.pages = pages
        self.seed = seed
        self.names = 0
        self.forced = 0
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    # ---- what happens ------------------------------------------------------------------------

    @rule(
        family=st.integers(0, 2),
        shared=st.integers(0, 30),
        own=st.integers(1, 12),
        answer=st.integers(1, 110),
    )
    def arrive(self, family: int, shared: int, own: int, answer: int) -> None:
        """A request whose prompt begins as those of its family do."""
        name = f"r{self.names}"
        self.names += 1
        prompt = [family * 100 + i for i in range(shared)] + [
            self.names * 50 + i for i in range(own)
        ]
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        sampling.update_from_generation_config({}, None)
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self.hasher))

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @rule(which=st.integers(0, 5))
    def abort(self, which: int) -> None:
        names = list(self.scheduler.requests)
        if names:
            self.scheduler.finish_requests(
                names[which % len(names)], RequestStatus.FINISHED_ABORTED
            )

    @rule()
    def preempt_all(self) -> None:
        """As a weight update does: every running request loses its cache."""
        self.forced += len(self.scheduler.running)
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def step(self) -> None:
        """One step of the engine, with as many batches in flight as it has."""
        if self.scheduler.has_requests():
            shared = any(block.ref_cnt > 1 for block in self.pool.blocks[1:])
            before = self.scheduler.ledger.preemptions
            output = self.scheduler.schedule()
            if shared:  # one that shares all its pages cannot be compressed without a free one
                self.forced += self.scheduler.ledger.preemptions - before
            self.check_plans(output)
            self.queue.append((output, self.worker.execute(output)))
        if self.queue and (len(self.queue) >= self.depth or not self.scheduler.has_requests()):
            self.scheduler.update_from_output(*self.queue.popleft())

    # ---- what must hold ----------------------------------------------------------------------

    def check_plans(self, output: Any) -> None:
        for plan in getattr(output, ATTRIBUTE).plans:
            for page in plan.target:
                block = self.pool.blocks[page]
                assert block.ref_cnt == 1, "compaction writes a page that others see"
                # Registered since, by the prefill of another request, it would be hashed.
                assert block.block_hash is None, "compaction writes a cached page"

    @invariant()
    def every_page_is_free_or_owned(self) -> None:
        owners: Counter[int] = Counter()
        for name, blocks in self.scheduler.pages.req_to_blocks.items():
            ids = [block.block_id for block in blocks]
            assert len(set(ids)) == len(ids), f"{name} holds a page twice"
            owners.update(ids)
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        assert len(set(free)) == len(free)
        assert not set(free) & set(owners)
        assert len(free) + len(owners) == self.pages, "pages leaked"
        for block in self.pool.blocks[1:]:
            assert block.ref_cnt == owners[block.block_id]
        assert len(free) == self.pool.get_num_free_blocks()
        assert 0 <= self.scheduler.kv_cache_manager.usage <= 1

    @invariant()
    def nobody_is_preempted_for_want_of_a_page(self) -> None:
        assert self.scheduler.ledger.preemptions == self.forced

    @invariant()
    def accounts_are_those_of_requests_with_pages(self) -> None:
        assert set(self.scheduler.pages.accounts) == {
            name for name, blocks in self.scheduler.pages.req_to_blocks.items() if blocks
        }
        limit = self.scheduler.budget_config.max_pages
        for account in self.scheduler.pages.accounts.values():
            assert limit is None or account.capacity <= limit
            assert account.evicted >= 0
        residents = len(self.scheduler.pages.accounts)
        each = self.scheduler.budget_config.admit_pages
        assert residents <= 1 or each is None or self.pages // residents >= each

    def teardown(self) -> None:
        """Everybody finishes, and the pool is as at the start."""
        if not hasattr(self, "scheduler"):
            return
        left = sum(r.num_tokens + r.max_tokens for r in self.scheduler.requests.values())
        for _ in range(40 + 4 * left):
            if not self.scheduler.has_requests() and not self.queue:
                break
            self.step()
        assert not self.scheduler.requests, "somebody makes no progress"
        self.every_page_is_free_or_owned()
        self.nobody_is_preempted_for_want_of_a_page()
        assert self.pool.get_num_free_blocks() == self.pages
        assert self.scheduler.pages.accounts == {}


TestStateful = Machine.TestCase
TestStateful.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
