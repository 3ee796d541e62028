"""What the scheduler has done, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Totals since the engine started; only ever increased."""

    evicted_tokens: int = 0
    reclaimed_pages: int = 0
    """Pages that compressions gave back to the pool."""
    copied_pages: int = 0
    """Pages that a compression had to replace because they were shared or in the prefix cache."""
    stale_reports: int = 0
    """Demand reports that came too late or from before a preemption, and were ignored."""
    refused_prompts: int = 0
    """Requests whose prompt is longer than the whole pool."""
    confirmed: int = 0
    """Compressions that the worker says it has carried out."""
    preemptions: int = 0
    computed_tokens: int = 0
    """Tokens that went through the model, prompts included."""
    recomputed_tokens: int = 0
    """Tokens computed again after preemptions, prefix-cache hits deducted."""
    by_reason: Counter[str] = field(default_factory=Counter)
    """Compressions by reason.

    ``boundary``: the policy said so; ``pool``: pages are short; ``admission``: somebody waits for
    them; ``max_pages``: the limit is reached; ``over_capacity``: a prompt exceeds its capacity;
    ``replay``: a preempted request is computed again in fewer pages than it has tokens; ``quota``,
    ``growth_rate``: a rollout's limits.
    """
    growths_by_reason: Counter[str] = field(default_factory=Counter)
    """Capacity steps granted at a boundary, by reason.

    ``signal``: the policy wanted it; ``cold``: nothing had been measured yet; ``spare``: there was
    memory for everyone.
    """
    refused_by_reason: Counter[str] = field(default_factory=Counter)
    """Growths that a policy wanted and that were not allowed, by reason: ``pool``, ``max_pages``,
    ``quota``, ``growth_rate``."""

    @property
    def growths(self) -> int:
        """Growths for any reason."""
        return self.growths_by_reason.total()

    @property
    def growths_refused(self) -> int:
        """Growths refused for any reason."""
        return self.refused_by_reason.total()

    @property
    def compressions(self) -> int:
        """Compressions for any reason."""
        return self.by_reason.total()

    @property
    def recomputed_share(self) -> float:
        """Part of all computed tokens that had been computed before, from 0 to 1."""
        return self.recomputed_tokens / max(self.computed_tokens, 1)
