"""What the live page and ``growpage top`` show: one engine's state at one moment, as plain data.

The engine writes it as JSON, at most twice a second and only where the live page was asked for.
It holds sizes, decisions and request ids, never text.
"""

from __future__ import annotations

from typing import Literal, NotRequired

# Not typing's own, which pydantic can check only from Python 3.12 on.
from typing_extensions import TypedDict

Mode = Literal["observe", "enforce"]


class RequestState(TypedDict):
    """One running request."""

    id: str
    tenant: str | None
    mode: Mode
    """``observe``: it is only watched, and ``evicted`` stays 0."""
    prompt: int
    """Tokens of its prompt."""
    logical: int
    """Tokens so far: what it would hold uncompressed."""
    kept: int
    """KV tokens that it holds."""
    evicted: int
    compressions: int
    pages: list[int]
    """The physical pages that it holds, in logical order."""
    history: list[tuple[float, int, int]]
    """Unix time, pages held, and pages that it would hold uncompressed; at most 120 points since
    its admission, evenly thinned."""


class DecisionState(TypedDict):
    """One decision at a boundary."""

    time: float
    """Unix time in seconds."""
    request: str
    mode: Mode
    action: Literal["grow", "compress", "refuse"]
    """``refuse``: growth was wanted and refused, and nothing could be evicted either."""
    reason: str
    """As in the metrics ``growpage_compressions_total`` and ``growpage_growths_total``."""
    before: int
    """Pages held before."""
    after: int
    """Pages held afterwards."""
    evicted: int
    """Tokens evicted."""
    delta: float | None
    """D_p of the short summary less that of the long one, in tokens; none if not measured."""
    loss: float | None
    """Predicted loss of attention mass, 0 to 1; none if nothing was evicted or measured."""


class Snapshot(TypedDict):
    """One engine."""

    time: float
    """Unix time in seconds."""
    engine: int
    model: str
    policy: str
    score: str
    mode: Mode
    cache: str
    """The KV cache's type."""
    block_size: int
    """Tokens in a page."""
    total_pages: int
    """Pages of the pool; their numbers run from 1, since vLLM keeps page 0 for itself."""
    free_pages: int
    """Pages that nobody holds, those that only the prefix cache knows included."""
    cached_pages: NotRequired[list[int]]
    """The physical pages that nobody holds and whose content the prefix cache still knows; absent
    where the engine does not say."""
    running: int
    waiting: int
    max_num_seqs: int
    requests: list[RequestState]
    decisions: list[DecisionState]
    """The last 200 at most, oldest first."""
    totals: dict[str, float]
    """Since the engine started: ``compressions``, ``growths``, ``growths_refused``,
    ``evicted_tokens``, ``reclaimed_pages``, ``preemptions``, ``recomputed_share``."""


class LiveState(TypedDict):
    """What a server answers at ``/growpage/state.json``."""

    time: float
    """Unix time in seconds, by the server's clock."""
    engines: list[Snapshot]
    """By index."""
    unreadable: list[str]
    """Names of the engines' files that hold no snapshot."""
