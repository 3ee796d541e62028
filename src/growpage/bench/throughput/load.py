"""What is asked of an engine, and when: requests of given lengths, and the pace of their arrival.

A closed loop has a number of clients, each of which sends its next request as soon as its last one
is answered. An open loop sends requests at a rate, whether or not the engine keeps up: the gaps
between them are drawn as ``vllm bench serve`` draws them, so that the same seed gives the very same
arrivals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from growpage.budget.errors import ConfigError

DEFAULT_CLIENTS = 32


class LoadRequest(BaseModel):
    """One request; its answer has exactly ``output_tokens`` tokens, whatever the model says."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    prompt: str
    """What a server gets."""
    prompt_token_ids: list[int]
    """The same, as an engine in this process gets it."""
    output_tokens: int = Field(ge=1)

    @property
    def tokens(self) -> int:
        """Tokens at its longest, prompt and answer."""
        return len(self.prompt_token_ids) + self.output_tokens

    def pages(self, block_size: int) -> int:
        """Pages that it holds at its longest when nothing is evicted."""
        return -(-self.tokens // block_size)


def pages_needed(requests: Sequence[LoadRequest], at_once: int, block_size: int) -> int:
    """Pages with which a load can never be short: those of its ``at_once`` largest requests."""
    return sum(sorted((request.pages(block_size) for request in requests), reverse=True)[:at_once])


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths, in tokens: ``128``, ``64-512``, or ``64-512:log``."""

    low: int
    high: int
    log: bool = False
    """Whether the logarithm is uniform: many short ones, and a few that are long."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read it as it is written on a command line.

        Raises:
            ConfigError: it is not written so, or its bounds are wrong.
        """
        match = re.fullmatch(r"(\d+)(?:-(\d+)(:log)?)?", text.strip())
        low = int(match[1]) if match else 0
        high = int(match[2] or low) if match else 0
        if not match or not 1 <= low <= high:
            raise ConfigError(
                f"{text!r} says no lengths; write 128 (always), 64-512 (uniform) or 64-512:log "
                "(many short, few long), in tokens, from 1 up"
            )
        return cls(low, high, bool(match[3]))

    def draw(self, count: int, generator: np.random.Generator) -> list[int]:
        """As many lengths, each between the bounds, both included."""
        if self.log:
            exact = np.exp(generator.uniform(math.log(self.low), math.log(self.high + 1), count))
            return [min(int(length), self.high) for length in exact]
        return [int(length) for length in generator.integers(self.low, self.high + 1, count)]

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}-{self.high}{':log' if self.log else ''}"


class ClosedLoop(BaseModel):
    """So many clients, each with one request at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["closed"] = "closed"
    clients: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.clients} clients"


class OpenLoop(BaseModel):
    """Requests at a rate, whether or not the engine keeps up."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["open"] = "open"
    rate: float = Field(gt=0, allow_inf_nan=False)
    """Requests a second, on average."""
    burstiness: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """vLLM's: the shape of the gamma distribution of gaps. 1: Poisson; below: bursts; above: more
    even. The variance of a gap is the square of its mean, over this."""
    seed: int = 0

    def arrivals(self, count: int) -> list[float]:
        """When requests arrive, in seconds from the start; the last one at ``count / rate``.

        As in vLLM 0.32, ``benchmarks/serve.py``, ``get_request``: gaps are drawn from NumPy's
        global generator, here from one of the same kind and seed, and scaled to the exact rate.
        """
        if count == 0:
            return []
        generator = np.random.RandomState(self.seed)  # what np.random.seed() sets
        scale = 1 / (self.rate * self.burstiness)
        gaps = [generator.gamma(shape=self.burstiness, scale=scale) for _ in range(count)]
        times = np.cumsum(gaps)
        return [float(time) for time in times * (count / self.rate / times[-1])]

    def __str__(self) -> str:
        bursts = "" if self.burstiness == 1 else f", burstiness {self.burstiness:g}"
        return f"{self.rate:g} requests/s{bursts}"


Load = Annotated[ClosedLoop | OpenLoop, Field(discriminator="kind")]
"""The pace of a load."""


def make_loads(
    clients: int | None, rates: Sequence[float], burstiness: float = 1.0, seed: int = 0
) -> list[ClosedLoop | OpenLoop]:
    """The loads of a command line: an open loop for each rate, or a closed one.

    Raises:
        ConfigError: both are given, or a number is out of range.
    """
    if clients and rates:
        raise ConfigError("--clients is a closed loop and --request-rate an open one: give either")
    given = [*(("--request-rate", rate) for rate in rates), ("--burstiness", burstiness)]
    for name, value in given:
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value:g}, but must be a finite number, more than 0")
    if not rates:
        return [ClosedLoop(clients=clients or DEFAULT_CLIENTS)]
    return [OpenLoop(rate=rate, burstiness=burstiness, seed=seed) for rate in rates]


class Pace:
    """When the next request is to be sent.

    Args:
        load: closed or open.
        count: requests of the load.
    """

    def __init__(self, load: ClosedLoop | OpenLoop, count: int) -> None:
        self._clients = load.clients if isinstance(load, ClosedLoop) else None
        self._arrivals = load.arrivals(count) if isinstance(load, OpenLoop) else []

    def send_at(self, index: int, active: int, now: float) -> float:
        """The time of request ``index``, in seconds from the start.

        Args:
            index: requests sent before it.
            active: of those, the ones that have not been answered.
            now: seconds from the start.

        Returns:
            Not after ``now`` if it is due; infinity if one must be answered first.
        """
        if self._clients is None:
            return self._arrivals[index]
        return now if active < self._clients else math.inf
