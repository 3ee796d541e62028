"""A worker without a model: pages hold the identity of a token instead of its keys and values.

It does with the scheduler's messages what the real worker does, at no cost, and checks as it goes
that every page it reads holds what the request wrote there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from growpage.budget.config import BudgetConfig
from growpage.budget.demand import Demand
from growpage.budget.policies import tracks_entropy
from growpage.engine.messages import (
    ATTRIBUTE,
    CompactionPlan,
    DemandReport,
    StepAnswer,
    StepMessage,
)

VOCABULARY = 1000


@dataclass
class StubRequest:
    """What the worker knows of a request."""

    prompt: int
    tokens: list[int]
    pages: list[int]
    identities: list[int] = field(default_factory=list)
    """One for each token: equal for equal prefixes, as cached keys and values are."""
    cold: bool = False

    def identity(self, position: int) -> int:
        while len(self.identities) <= position:
            before = self.identities[-1] if self.identities else 0
            self.identities.append(hash((before, self.tokens[len(self.identities)])))
        return self.identities[position]

    def truncate(self, tokens: int) -> None:
        del self.tokens[tokens:]
        del self.identities[tokens:]


class StubWorker:
    """Carries out steps, and checks them."""

    def __init__(self, config: BudgetConfig, block: int, seed: int) -> None:
        self.config = config
        self.block = block
        self.random = random.Random(seed)
        self.requests: dict[str, StubRequest] = {}
        self.memory: dict[tuple[int, int], int] = {}
        self.compactions = 0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """One step, as the real worker's ``execute_model`` and ``sample_tokens``."""
        message: StepMessage = getattr(output, ATTRIBUTE)
        for plan in message.plans:
            self._compact(plan)
        for gone in output.finished_req_ids:
            self.requests.pop(gone, None)
        for new in output.scheduled_new_reqs:
            tokens = list(new.prompt_token_ids or ())
            self.requests[new.req_id] = StubRequest(len(tokens), tokens, list(new.block_ids[0]))
        cached = output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for index, name in enumerate(cached.req_ids):
            request = self.requests[name]
            request.truncate(request.prompt + cached.num_output_tokens[index])
            starts[name] = cached.num_computed_tokens[index]
            new_pages = cached.new_block_ids[index]
            if name in cached.resumed_req_ids:
                request.pages = []
            request.pages += new_pages[0] if new_pages else []
        sampled = [
            self._forward(name, starts[name], tokens, message.evicted.get(name, 0))
            for name, tokens in output.num_scheduled_tokens.items()
        ]
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        reports = {
            name: self._report(epoch, starts[name] + output.num_scheduled_tokens[name])
            for name, epoch in message.measure.items()
            if self.random.random() < 0.8
        }
        answer = StepAnswer(type(self).__name__, len(message.plans), reports)
        setattr(result, ATTRIBUTE, answer)
        return result

    def _report(self, epoch: int, position: int) -> DemandReport:
        short, long = self.random.uniform(1, 40), self.random.uniform(1, 40)
        losses = tuple(sorted(self.random.random() for _ in range(3)))
        demand = Demand(short, long, position, losses)
        if tracks_entropy(self.config):
            entropy, density = self.random.uniform(0, 5), self.random.random()
            demand = replace(demand, entropy=entropy, density=density)
        return DemandReport(epoch, position, demand)

    def _forward(self, name: str, start: int, tokens: int, evicted: int) -> list[int]:
        """Write the step's tokens, read all that are cached, and sample if all are computed."""
        request = self.requests[name]
        for position in range(start, start + tokens):
            self.memory[self._slot(request, position - evicted)] = request.identity(position)
        self._read(name, start + tokens, evicted)
        if start + tokens < len(request.tokens):
            return []
        assert start + tokens == len(request.tokens), f"{name} computes a token that nobody sampled"
        token = hash((request.identity(start + tokens - 1), "next")) % VOCABULARY
        request.tokens.append(token)
        return [token]

    def _slot(self, request: StubRequest, physical: int) -> tuple[int, int]:
        page, offset = divmod(physical, self.block)
        return request.pages[page], offset

    def _read(self, name: str, computed: int, evicted: int) -> None:
        """The cache holds tokens of the request, in order, and those that are always kept."""
        request = self.requests[name]
        assert len(set(request.pages)) == len(request.pages), f"{name} holds a page twice"
        positions = self._positions(request, computed - evicted)
        assert positions == sorted(set(positions))
        assert positions[-1] == computed - 1
        if evicted:
            assert positions[: self.config.sink] == list(range(self.config.sink))
        else:
            assert positions == list(range(computed))

    def _positions(self, request: StubRequest, count: int) -> list[int]:
        of = {request.identity(i): i for i in range(len(request.tokens))}
        found = [self.memory[self._slot(request, physical)] for physical in range(count)]
        assert all(identity in of for identity in found), "a page holds somebody else's tokens"
        return [of[identity] for identity in found]

    def _compact(self, plan: CompactionPlan) -> None:
        """Keep what is always kept and some of the rest."""
        self.compactions += 1
        request = self.requests[plan.request_id]
        before = [*plan.kept, *plan.source]
        assert request.pages[: len(before)] == before, "the plan speaks of other pages"
        held = [self.memory[self._slot(request, i)] for i in range(plan.tokens)]
        assert len(held) == len(self._positions(request, plan.tokens))
        always = {*range(plan.prefix), *range(plan.tokens - self.config.recent, plan.tokens)}
        others = [i for i in range(plan.tokens) if i not in always]
        kept = sorted([*always, *self.random.sample(others, plan.survivors - len(always))])
        assert len(kept) == plan.survivors
        assert kept[: len(plan.kept) * self.block] == list(range(len(plan.kept) * self.block))
        request.pages = [*plan.kept, *plan.target]
        assert plan.survivors < len(request.pages) * self.block, "no room for the next token"
        for place in range(len(plan.kept) * self.block, len(request.pages) * self.block):
            slot = self._slot(request, place)
            self.memory.pop(slot, None)
            if place < plan.survivors:
                self.memory[slot] = held[kept[place]]
