"""What a client sees: tokens a second, and how long it waits for them.

The definitions are those of ``vllm bench serve`` (vLLM 0.32, ``benchmarks/serve.py``):

- TTFT, time to first token: from the request to the first event of its answer that has a token;
- TPOT, time per output token: the rest of the answer's time over its tokens but the first;
- ITL, inter-token latency: the gaps between the events of an answer, of all answers together;
- E2EL, end-to-end latency: from the request to the last token.

One thing differs: in an open loop a request counts from when it was due, and not from when the
client came to send it. A client that is late hides just the delays that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from pydantic import BaseModel, ConfigDict

PERCENTILES = (50, 90, 99)

METRICS = ("ttft", "tpot", "itl", "e2el")
"""In the order of reports."""


class Trace(BaseModel):
    """One request as its client saw it; times are in seconds from the start of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    request: str
    prompt_tokens: int
    wanted_tokens: int
    sent_s: float
    """When it was sent; in an open loop, when it was due."""
    events: list[tuple[float, int]]
    """Each event with tokens: its time, and the tokens that it brought."""
    error: str | None = None
    """Why it failed, if it did."""

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return sum(tokens for _, tokens in self.events)

    @property
    def failure(self) -> str | None:
        """Why it is not counted, if it is not: an error, or an answer of the wrong length."""
        if self.error is None and self.tokens != self.wanted_tokens:
            return f"{self.tokens} of {self.wanted_tokens} tokens"
        return self.error

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.events[0][0] - self.sent_s

    @property
    def e2el(self) -> float:
        """Seconds to the last token."""
        return self.events[-1][0] - self.sent_s

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; none where there is no other."""
        return (self.e2el - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between its events."""
        return [after - before for (before, _), (after, _) in pairwise(self.events)]


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles, in seconds."""

    mean: float
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """Of values; none where there are none. Percentiles are NumPy's, with interpolation."""
        if not values:
            return None
        found = np.percentile(values, PERCENTILES)
        return cls(
            float(np.mean(values)),
            {rank: float(value) for rank, value in zip(PERCENTILES, found, strict=True)},
        )

    def milliseconds(self) -> dict[str, float]:
        """As reports hold it."""
        ranks = {f"p{rank}": value for rank, value in self.percentiles.items()}
        return {
            name: round(1000 * value, 3) for name, value in {"mean": self.mean, **ranks}.items()
        }


def latencies(traces: Iterable[Trace]) -> dict[str, Distribution]:
    """The distributions of :data:`METRICS` over requests that did not fail."""
    good = [trace for trace in traces if trace.failure is None]
    values: dict[str, list[float]] = {
        "ttft": [trace.ttft for trace in good],
        "tpot": [trace.tpot for trace in good if trace.tpot is not None],
        "itl": [gap for trace in good for gap in trace.gaps],
        "e2el": [trace.e2el for trace in good],
    }
    found = {name: Distribution.of(values[name]) for name in METRICS}
    return {name: each for name, each in found.items() if each is not None}
