"""What one benchmark run is asked for and what it answers: the protocol with its process.

The parent writes a :class:`RunSpec` to the process's standard input and reads one event a line from
its standard output, as JSON: any number of :class:`Started` and :class:`Progress`, then one
:class:`Finished` or :class:`Failed`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from growpage.bench.pool import Dtype
from growpage.bench.workload import DemoRequest


class Message(BaseModel):
    """What travels between a benchmark and its processes, as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RunSpec(Message):
    """One policy on one workload, in one engine of its own."""

    policy: str
    """The name that the results go under."""
    settings: dict[str, Any] | None
    """Fields of the budget's configuration; none for vLLM without the plugin."""
    model: str
    """A model's folder."""
    requests: list[DemoRequest]
    """All submitted at once."""
    pool_pages: int
    """Pages that requests can hold."""
    dtype: Dtype = "auto"
    """What the model is served in."""
    page_bytes: int
    """Bytes a page, over all layers."""
    block_size: int
    """Tokens a page."""
    prefix_caching: bool = True
    seed: int = 0


class Timeline(Message):
    """The state at the start of some steps: after scheduling, before the forward pass."""

    step: list[int]
    seconds: list[float]
    """Since the start of the first step."""
    pages_used: list[int]
    """Pages of the pool that are not free."""
    running: list[int]
    waiting: list[int]
    pages: dict[str, list[int]]
    """Pages held, for each request."""
    tokens: dict[str, list[int]]
    """Logical length, prompt and answer, for each request while it holds pages; else 0."""


class Preemption(Message):
    """A running request lost all its pages and went back to the queue."""

    seconds: float
    request: str


class RunResult(Message):
    """What one run measured."""

    policy: str
    tokens_per_s: float
    """Generated tokens over the wall time from the first step to the last."""
    output_tokens: int
    wall_s: float
    engine_start_s: float
    """Loading vLLM and the model, and the warm-up; not part of ``wall_s``."""
    steps: int
    preemptions: int
    recomputed_tokens: int
    """Tokens that went through the model a second time because their pages had been lost."""
    mean_pages: float
    """Pages a request, over all steps and all requests that hold any."""
    peak_pages: int
    mean_resident: float
    """Requests that held pages at once, over all steps."""
    peak_resident: int
    """Most requests that held pages at once."""
    compressions: int
    growths: int
    growths_refused: int
    evicted_tokens: int
    pages_leaked: int
    """Free pages before the first request less free pages after the last."""
    pool_pages: int
    outputs: dict[str, list[int]]
    """Generated token ids of each request."""
    timeline: Timeline
    preempted: list[Preemption]


class Started(Message):
    """The engine is up and warm; the timed part begins."""

    event: Literal["started"] = "started"
    engine_start_s: float


class Progress(Message):
    """How far the run is."""

    event: Literal["progress"] = "progress"
    finished: int
    """Requests that are done."""
    tokens: int
    """Tokens generated so far."""


class Finished(Message):
    """The run is done."""

    event: Literal["finished"] = "finished"
    result: RunResult


class Failed(Message):
    """The run cannot go on."""

    event: Literal["failed"] = "failed"
    message: str


Event = Annotated[Started | Progress | Finished | Failed, Field(discriminator="event")]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads one line."""
