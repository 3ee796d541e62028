"""Every check by its name; ``docs/troubleshooting.md`` has an entry for each."""

from growpage.diagnosis.checks import decisions, fleet, memory, settings
from growpage.diagnosis.checks.verdict import EngineCheck, EvidenceCheck, Verdict

EVIDENCE_CHECKS: dict[str, EvidenceCheck] = {
    "engines": fleet.engines,
    "growpage metrics": fleet.growpage_metrics,
    "versions": fleet.versions,
    "engines alike": fleet.alike,
}
"""Of all engines together, in the order to mend them in."""

ENGINE_CHECKS: dict[str, EngineCheck] = {
    "restarts": decisions.restarts,
    "worker": decisions.worker,
    "compression under pressure": decisions.compression_under_pressure,
    "orphaned pages": memory.orphaned_pages,
    "preemptions": memory.preemptions,
    "recompute share": memory.recompute_share,
    "queue": memory.queue,
    "refused growth": decisions.refused_growth,
    "refused prompts": memory.refused_prompts,
    "predicted loss": decisions.predicted_loss,
    "page utilization": memory.page_utilization,
    "allocation latency": memory.allocation_latency,
    "fragmentation": memory.fragmentation,
    "use of the budget": decisions.use_of_the_budget,
    "prefix caching": settings.prefix_caching,
    "8-bit cache": settings.eight_bit_cache,
    "settings and pool": settings.settings_and_pool,
}
"""Of one engine at a time, in the order to mend them in."""

__all__ = ["ENGINE_CHECKS", "EVIDENCE_CHECKS", "EngineCheck", "EvidenceCheck", "Verdict"]
