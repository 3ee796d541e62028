"""Random loads on a scheduler without a model: everything that may happen to its requests."""

from __future__ import annotations

import copy
import random
from collections import deque
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from growpage.budget.config import BudgetConfig
from growpage.budget.rollout import TENANT_FIELD, Rollout
from growpage.engine.limits import GrowthLimits
from growpage.engine.messages import ATTRIBUTE, StepMessage
from growpage.engine.scheduler import BudgetMixin, GrowPageAsyncScheduler, GrowPageScheduler
from growpage.engine.spec import GrowPageSpec
from tests.engine.stub_worker import StubWorker

BLOCK = 4
STEP_S = 0.05
"""Seconds that a step takes by the clock of growth limits."""

STAGES = [
    Rollout(max_growth_rate=None),
    Rollout(),
    Rollout(mode="observe"),
    Rollout.model_validate({"only": {"tenants": ["a"]}, "max_growth_rate": None}),
    Rollout(quotas={"a": 6, "b": 12}, max_growth_rate=2.0),
]


class Load:
    """One scheduler with its stub worker, and what happens to them. Equal seeds, equal loads.

    Args:
        vllm_config: of an engine; a copy is changed.
        budget: growpage's settings.
        seed: of all that is random.
        rollout: a rollout file, for a load that goes through stages.
    """

    def __init__(
        self, vllm_config: Any, budget: dict[str, Any], seed: int, rollout: Path | None = None
    ) -> None:
        chance = self.chance = random.Random(seed)
        budget = {"sink": 1, "recent": 2, "window": 2, "min_pages": 3, **budget}
        asynchronous = chance.random() < 0.5
        pages = chance.choice([chance.randint(8, 40), chance.randint(40, 120)])
        config = copy.deepcopy(vllm_config)
        operations = {"rollout": str(rollout)} if rollout else {}
        config.additional_config = {"growpage": budget, "growpage_operations": operations}
        config.cache_config.enable_prefix_caching = chance.random() < 0.5
        config.cache_config.num_gpu_blocks = pages + 1
        tokens = chance.choice([5, 8, 32, 256])  # with the least some decodes have to wait
        config.scheduler_config.max_num_batched_tokens = tokens
        config.scheduler_config.max_num_scheduled_tokens = tokens
        config.scheduler_config.policy = chance.choice(["fcfs", "priority"])
        spec = GrowPageSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        scheduler_cls = GrowPageAsyncScheduler if asynchronous else GrowPageScheduler
        self.scheduler: BudgetMixin = scheduler_cls(
            config,
            KVCacheConfig(pages + 1, [], groups, hash_block_size=BLOCK),
            StructuredOutputManager(config),
            block_size=BLOCK,
        )
        watch = self.scheduler.enforcement.rollout
        self.steps = 0
        for controller in (self.scheduler.enforcement.controller, self._watcher):
            controller.limits = GrowthLimits(lambda: watch.current, lambda: self.steps * STEP_S)
        self.worker = StubWorker(BudgetConfig.of(budget), BLOCK, seed)
        self.in_flight: deque[Any] = deque()
        self.depth = 2 if asynchronous else 1
        self.sessions: dict[str, int] = {}  # inputs to come
        self.names = 0
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    @property
    def _watcher(self) -> Any:
        return self.scheduler.enforcement._watcher

    # ---- what happens ------------------------------------------------------------------------

    def happen(self) -> int:
        """Something happens; how many steps are to follow."""
        chance, scheduler = self.chance, self.scheduler
        what = chance.choices(
            [self._arrive, self._abort, self._preempt_all, self._pause, self._turn, self._go_on],
            [30, 4, 1, 1, 8, 8],
        )[0]
        what()
        steps = chance.choice([0, 0, 1, 3, 10])
        if steps:
            scheduler.set_pause_state(
                PauseState.UNPAUSED if chance.random() < 0.9 else scheduler.pause_state
            )
        return steps

    def _arrive(self) -> None:
        """A request whose prompt begins as those of its family do, perhaps with more to come."""
        chance = self.chance
        name = f"r{self.names}"
        self.names += 1
        family = chance.randint(0, 2)
        shared = [family * 100 + place for place in range(chance.randint(0, 30))]
        own = [self.names * 50 + place for place in range(chance.randint(1, 12))]
        session = self.depth == 1 and chance.random() < 0.2
        if session:
            self.sessions[name] = 2
        self.add(name, shared + own, chance.randint(1, 25 if session else 110), session=session)

    def _go_on(self) -> None:
        """A session goes on, or ends."""
        if not self.sessions:
            return
        name = self.chance.choice(list(self.sessions))
        self.sessions[name] -= 1
        more = self.sessions[name] >= 0
        if not more:
            del self.sessions[name]
        if name in self.scheduler.requests:
            more_prompt = [self.chance.randrange(50) for _ in range(9)]
            self.add(name, more_prompt, self.chance.randint(1, 25), session=more)

    def add(self, name: str, prompt: list[int], answer: int, *, session: bool = False) -> None:
        """A request for ``answer`` tokens, or an input of a session."""
        chance = self.chance
        sampling = SamplingParams(
            max_tokens=answer,
            ignore_eos=True,
            extra_args={TENANT_FIELD: chance.choice("abc")},
        )
        sampling.update_from_generation_config({}, None)
        priority = chance.randint(0, 1)
        self.scheduler.add_request(
            Request(
                name,
                prompt,
                sampling,
                None,
                arrival_time=float(self.names),
                block_hasher=self.hasher,
                priority=priority,
                resumable=session,
            )
        )

    def _abort(self) -> None:
        names = list(self.scheduler.requests)
        if names:
            self.scheduler.finish_requests(
                self.chance.choice(names), RequestStatus.FINISHED_ABORTED
            )

    def _preempt_all(self) -> None:
        if any(request.resumable for request in self.scheduler.requests.values()):
            return  # vLLM cannot, while a session waits for input
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def _pause(self) -> None:
        """Until something else happens."""
        self.scheduler.set_pause_state(
            self.chance.choice([PauseState.PAUSED_ALL, PauseState.PAUSED_NEW])
        )

    def _turn(self) -> None:
        self.turn(self.chance.choice(STAGES))

    def turn(self, stage: Rollout) -> None:
        """The next step is to find the rollout at this stage, if there is one."""
        watch = self.scheduler.enforcement.rollout
        if watch.path is not None:
            watch.path.write_text(stage.model_dump_json())
            watch._next_look, watch._seen = 0.0, None

    # ---- steps -------------------------------------------------------------------------------

    def step(self) -> tuple[Any, StepMessage] | None:
        """One step of the engine: what was scheduled, if there was anything to do."""
        self.steps += 1
        output = None
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self.in_flight.append((output, self.worker.execute(output)))
        if self.in_flight and (output is None or len(self.in_flight) >= self.depth):
            self.scheduler.update_from_output(*self.in_flight.popleft())
        return None if output is None else (output, getattr(output, ATTRIBUTE))
