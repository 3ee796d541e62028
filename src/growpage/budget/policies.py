"""Policies: who decides, at a capacity boundary, whether a request grows or is compressed.

A policy is one small class with one method, :meth:`Policy.decide`. What holds for all of them is
applied by the engine: no request exceeds ``max_pages``, and with no page to spare nothing grows.
A policy that shares decides one thing more: its requests give pages to each other, down to their
floors (:mod:`growpage.budget.sharing`). What a policy remembers of its decisions it keeps in
itself: an engine has one object, and another one for requests that are only watched. To add one,
write the class and name it in :data:`POLICIES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from math import ceil, floor
from typing import ClassVar

from growpage.budget.config import BudgetConfig, PageBudget
from growpage.budget.demand import Demand
from growpage.budget.running_quantile import RunningQuantile
from growpage.budget.sharing import MEASURING_GIVERS


class Action(Enum):
    """What happens to a request at a boundary."""

    GROW = "grow"
    """Take one more capacity step from the pool."""
    COMPRESS = "compress"
    """Evict one capacity step inside the pages held."""


@dataclass(frozen=True)
class Boundary:
    """A request that has filled its capacity."""

    pages: int
    """Pages held, all full."""
    ordinal: int
    """Boundaries that this request has met before."""
    demand: Demand | None
    """The measurement, or none when the summaries are cold or no fresh report has arrived."""


@dataclass(frozen=True)
class Pool:
    """The page pool of the whole engine."""

    total_pages: int
    spare_pages: int
    """Free pages that are not promised to any admitted request."""


class Policy(ABC):
    """Decides for one request at a time."""

    compresses: ClassVar[bool] = True
    """Whether any request is ever compressed; if not, the engine is plain vLLM."""
    needs_entropy: ClassVar[bool] = False
    """Whether the measurement must have the summaries of attention entropy."""
    shares: ClassVar[bool] = False
    """Whether a request may be asked to give pages to others, down to its floor."""

    def __init__(self, config: BudgetConfig, pages: PageBudget) -> None:
        self.config = config
        self.pages = pages

    @staticmethod
    def wants_demand(config: BudgetConfig) -> bool:
        """Whether, as ``config`` has it, the working sets are to be measured before boundaries."""
        return False

    @property
    def needs_demand(self) -> bool:
        """Whether the working sets are to be measured before each boundary."""
        return self.wants_demand(self.config)

    def initial_pages(self, prompt_tokens: int) -> int:
        """The capacity that a request is admitted with and is sure of, in pages.

        By default its prompt, the recent tokens and one step, so that the first boundary can evict
        a step without touching the prompt.
        """
        prompt = -(-(prompt_tokens + self.config.recent) // self.pages.block_size)
        return max(self.config.min_pages, prompt + self.pages.step_pages)

    def least_pages(self) -> int:
        """The capacity of the least demanding request: a pool must hold as many pages."""
        return self.config.min_pages

    def floor_pages(self, prompt_tokens: int, demand: Demand | None) -> int:
        """The capacity below which a request gives nothing, given its last measurement if any.

        To depend on nothing else: it is worked out once for each measurement.
        """
        return self.initial_pages(prompt_tokens)

    def needed_tokens(self, prompt_tokens: int, demand: Demand) -> int:
        """The working set of a request, and on top of it its prompt if that is protected."""
        return ceil(demand.short) + prompt_tokens * self.config.protect_prompt

    @abstractmethod
    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow or compress."""


class Full(Policy):
    """Never compress: plain vLLM."""

    compresses = False

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow."""
        return Action.GROW


class Fixed(Policy):
    """A constant budget, filled lazily, as Zipage and R-KV give every request."""

    def initial_pages(self, prompt_tokens: int) -> int:
        """The budget, whatever the prompt."""
        return self.pages.budget_pages

    def least_pages(self) -> int:
        """The budget: every request may fill it."""
        return self.pages.budget_pages

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Compress: the budget is full."""
        return Action.COMPRESS


class GrowPage(Policy):
    """The paper's rule (section 3.3): grow while attention is wider than it used to be.

    By how much wider is the paper's constant tau, or, with ``tau_quantile``, a quantile of the
    differences that this object has decided by before.
    """

    def __init__(self, config: BudgetConfig, pages: PageBudget) -> None:
        super().__init__(config, pages)
        share = config.tau_quantile
        self._deltas = None if share is None else RunningQuantile(share)

    @staticmethod
    def wants_demand(config: BudgetConfig) -> bool:
        """Always."""
        return True

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow if the difference exceeds the threshold, or while nothing trustworthy is known."""
        if boundary.demand is None:
            return Action.GROW
        delta, threshold = boundary.demand.delta, self.config.tau
        if self._deltas is not None:
            seen = self._deltas.value
            threshold = threshold if seen is None else seen
            self._deltas.add(delta)
        return Action.GROW if delta > threshold else Action.COMPRESS


class Every(Policy):
    """Grow at a given share of the boundaries, with no signal: the control for `growpage`."""

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow when the running total of the rate passes a whole number."""
        rate, done = self.config.growth_rate, boundary.ordinal
        grows = floor((done + 1) * rate + 1e-9) > floor(done * rate + 1e-9)
        return Action.GROW if grows else Action.COMPRESS


class Elastic(Policy):
    """Ours: every request grows as long as there is memory, and evicts as late as possible."""

    shares = True

    @staticmethod
    def wants_demand(config: BudgetConfig) -> bool:
        """Where floors or givers depend on it; promises and sizes are known without."""
        return (
            config.floor == "working_set"
            or config.floor_loss is not None
            or config.giver in MEASURING_GIVERS
        )

    def initial_pages(self, prompt_tokens: int) -> int:
        """As for others; only the least capacity if the prompt may be evicted as anything else."""
        if self.config.protect_prompt:
            return super().initial_pages(prompt_tokens)
        return self.config.min_pages

    def floor_pages(self, prompt_tokens: int, demand: Demand | None) -> int:
        """The working set, what keeps the loss within bounds, or the promise.

        The prompt comes on top of the working set if it is protected. Until that is measured, a
        request has a share of its prompt, by default the whole, and a step.
        """
        if self.config.floor == "promised":
            return self.initial_pages(prompt_tokens)
        least = self.initial_pages(prompt_tokens)
        if demand is None:
            kept = ceil(prompt_tokens * self.config.prompt_floor)
            return max(least, super().initial_pages(kept))
        block = self.pages.block_size
        if self.config.floor_loss is None:
            tokens = self.needed_tokens(prompt_tokens, demand)
        else:
            within = sum(loss <= self.config.floor_loss for loss in demand.losses)
            tokens = demand.cached - within * block
        return max(least, -(-tokens // block) + self.pages.step_pages)

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow: what this may cost others is settled between all requests at once."""
        return Action.GROW


class Entropy(Policy):
    """Operational: grow while attention is wide and not settled.

    What is wide and what is settled says :mod:`growpage.budget.entropy`.
    """

    needs_entropy = True

    @staticmethod
    def wants_demand(config: BudgetConfig) -> bool:
        """Always."""
        return True

    def decide(self, boundary: Boundary, pool: Pool) -> Action:
        """Grow below the boundary of pages that entropy sets, or while nothing has been measured.

        Beyond, settled attention compresses, and else wide attention grows.
        """
        config, demand = self.config, boundary.demand
        if demand is None or demand.entropy is None or demand.density is None:
            return Action.GROW
        if boundary.pages < config.min_pages * (1 + config.entropy_boundary * demand.entropy):
            return Action.GROW
        settled = demand.density > config.entropy_dense
        wide = demand.entropy > config.entropy_wide
        return Action.GROW if wide and not settled else Action.COMPRESS


POLICIES: dict[str, type[Policy]] = {
    "full": Full,
    "fixed": Fixed,
    "growpage": GrowPage,
    "every": Every,
    "elastic": Elastic,
    "entropy": Entropy,
}


def make_policy(config: BudgetConfig, block_size: int) -> Policy:
    """The policy that ``config`` names, for an engine with pages of ``block_size`` tokens.

    Raises:
        ConfigError: the configuration does not fit the block size.
    """
    return POLICIES[config.policy](config, config.for_block_size(block_size))


def measures_demand(config: BudgetConfig) -> bool:
    """Whether demand is measured before each boundary: the policy needs it, or it is asked for."""
    policy = POLICIES[config.policy]
    return policy.wants_demand(config) or (config.track_entropy and policy.compresses)


def tracks_entropy(config: BudgetConfig) -> bool:
    """Whether a measurement has the summaries of attention entropy, for the same reasons."""
    policy = POLICIES[config.policy]
    return policy.needs_entropy or (config.track_entropy and policy.compresses)
