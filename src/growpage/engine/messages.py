"""What scheduler and worker tell each other in a step.

Both travel as an extra attribute, ``growpage``, of vLLM's own messages: ``StepMessage`` on the
``SchedulerOutput``, ``StepAnswer`` on the ``ModelRunnerOutput``. All is plain data, so that it can
be pickled between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from growpage.budget.demand import Demand

ATTRIBUTE = "growpage"


@dataclass(frozen=True)
class CompactionPlan:
    """Evict tokens of one request, before the forward pass of the step that carries the plan.

    The request's pages are ``kept + source`` now and ``kept + target`` afterwards; the last target
    page has room for at least one token to come.
    """

    request_id: str
    kept: tuple[int, ...]
    """Leading pages that do not change, so they may be shared or in the prefix cache."""
    source: tuple[int, ...]
    """Pages that are read."""
    target: tuple[int, ...]
    """Pages of the request alone, unknown to the prefix cache."""
    tokens: int
    """Tokens cached before."""
    survivors: int
    """Tokens cached afterwards: all of ``kept``, and as much of ``target`` as is needed."""
    prefix: int
    """Leading tokens that are always kept: the whole prompt, or the sinks."""
    position: int
    """Logical position of the next token."""


@dataclass(frozen=True)
class StepMessage:
    """From the scheduler, with every step."""

    plans: tuple[CompactionPlan, ...] = ()
    """In the order in which they must be carried out: one's freed page may be another's target."""
    evicted: dict[str, int] = field(default_factory=dict)
    """Tokens evicted so far from each request in the cache that has lost any, scheduled or not."""
    measure: dict[str, int] = field(default_factory=dict)
    """Requests whose demand is wanted after this step, with the epoch of the report to come."""
    idle: bool = False
    """Memory is far from short, so nothing will be measured soon, and query summaries may lapse."""


@dataclass(frozen=True)
class DemandReport:
    """From the worker, for a request that the step asked to measure."""

    epoch: int
    """Preemptions of the request when it was asked for; an older epoch is stale."""
    position: int
    """Logical tokens cached when it was measured."""
    demand: Demand


@dataclass(frozen=True)
class StepAnswer:
    """From the worker, with the tokens of every step."""

    runner: str
    """The model runner's class."""
    compactions: int
    """Plans carried out since the last answer."""
    reports: dict[str, DemandReport] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Time spent by phase since the last answer: ``compact`` for each plan, ``measure`` for each
    report, ``capture`` for each step."""
