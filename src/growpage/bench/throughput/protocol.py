"""What an engine's process is asked for and what it answers.

The parent writes an :class:`EngineSpec` to the process's standard input and then a load for each
run, as JSON, one a line. It reads one event a line from its standard output: :class:`Ready` when
the engine is up, then for each run any number of :class:`Progress` and one :class:`Measured`;
:class:`Failed` ends the process.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from growpage.bench.contenders import Contender
from growpage.bench.pool import Dtype
from growpage.bench.results import Failed, Message, Progress
from growpage.bench.throughput.latency import Trace
from growpage.bench.throughput.load import Load, LoadRequest


class EngineSpec(Message):
    """One contender's engine, and the requests of every load that it will be put under."""

    contender: Contender
    model: str
    """A model's folder."""
    requests: list[LoadRequest]
    pool_pages: int
    """Pages that requests can hold."""
    block_size: int
    """Tokens a page."""
    max_num_seqs: int
    """Requests at once, at most."""
    prefix_caching: bool = False
    eager: bool = True
    dtype: Dtype = "auto"
    """What the model is served in."""
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(request.tokens for request in self.requests)


class EngineFigures(Message):
    """What the engine did in one run; none where it cannot be seen."""

    steps: int | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    """Tokens that went through the model again because their pages had been lost."""
    peak_resident: int | None = None
    """Most requests that held pages at once."""
    mean_resident: float | None = None
    """Requests that held pages at once, over all steps, or samples of a server."""
    mean_pages: float | None = None
    """Pages a request, over all steps and all requests that hold any."""
    peak_pages: int | None = None
    """Most pages that one request held."""
    mean_pool_use: float | None = None
    """Share of the pool in use, over all steps, or samples of a server."""
    peak_pool_use: float | None = None
    compressions: int | None = None
    evicted_tokens: int | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    """Time by phase of growpage's work: ``capture``, ``measure``, ``compact``, ``decide``."""


class Measurement(Message):
    """One run."""

    wall_s: float
    """From the start to the last token."""
    traces: list[Trace]
    engine: EngineFigures


class Ready(Message):
    """The engine is up and warm."""

    event: Literal["ready"] = "ready"
    start_s: float


class Measured(Message):
    """The run is done."""

    event: Literal["measured"] = "measured"
    measurement: Measurement


Event = Annotated[Ready | Progress | Measured | Failed, Field(discriminator="event")]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
LOAD: TypeAdapter[Load] = TypeAdapter(Load)
"""Read one line each."""
