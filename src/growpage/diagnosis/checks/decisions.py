"""Checks of an engine's decisions: are they taken, carried out, and at what price."""

from __future__ import annotations

from growpage.diagnosis.checks.pressure import mode, policy, under_pressure
from growpage.diagnosis.checks.verdict import Verdict, failure, ok, warning
from growpage.diagnosis.evidence import Engine

UNCONFIRMED = 3
"""Compressions planned without one carried out that are too many to be on their way still."""

REFUSED_SHARE = 0.1
"""Share of wanted growth that is refused above which a limit is felt."""

HIGH_LOSS = 0.1
"""95th percentile of the predicted loss of attention mass above which answers are at risk."""

UNMEASURED = ("fixed", "every")
"""Policies that decide without measuring attention."""

LIMITS = {
    "pool": (
        "the pool had no free page",
        "more KV memory (--kv-cache-memory-bytes, --gpu-memory-utilization), more replicas, or a "
        "smaller --max-num-seqs",
    ),
    "max_pages": ("requests were at their most pages", "a larger --growpage-max-pages"),
    "quota": (
        "tenants were at their quota of pages",
        "a larger quota for the tenant in the file of --growpage-rollout",
    ),
    "growth_rate": (
        "requests grew faster than allowed",
        "a larger max_growth_rate in the file of --growpage-rollout",
    ),
}
"""What each reason of ``growpage_growth_refused_total`` means, and the limit to change."""


def restarts(engine: Engine) -> Verdict:
    """Whether counters went back, so that the span is not of one process."""
    backwards = sum(series.resets for series in engine.find("vllm:generation_tokens_total"))
    if not backwards:
        return ok("none: counters only rose")
    return warning(
        f"a counter went back (times: {backwards}): the server was restarted, or its address leads "
        "to one server after another",
        "diagnose one server's own address, not a load balancer's; if it restarts, see its log",
    )


def worker(engine: Engine) -> Verdict:
    """Whether the worker carries out what the scheduler plans."""
    planned = engine.last("growpage_compressions_total", mode="enforce")
    confirmed = engine.last("growpage_compactions_confirmed_total")
    recent = engine.increase("growpage_compressions_total", mode="enforce")
    done = engine.increase("growpage_compactions_confirmed_total")
    if planned < UNCONFIRMED:
        return ok(f"{planned:.0f} compressions planned so far, {confirmed:.0f} carried out")
    if not confirmed or (recent >= UNCONFIRMED and not done):
        return failure(
            f"{planned:.0f} compressions were planned ({recent:.0f} in the span), but the worker "
            f"carried out {confirmed:.0f} ({done:.0f} in the span): the worker class is not "
            "growpage's",
            "leave out any other --worker-cls; growpage serve --print-command shows ours",
        )
    return ok(f"{planned:.0f} compressions planned, {confirmed:.0f} carried out")


def compression_under_pressure(engine: Engine) -> Verdict:
    """Which hook is missing where memory is short and nothing is compressed."""
    if not under_pressure(engine):
        return ok("no pressure: no request was preempted or waited for a full pool")
    compressed = engine.increase("growpage_compressions_total", mode="enforce")
    if compressed:
        return ok(f"{compressed:.0f} compressions while memory was short")
    said = "memory is short, and nothing was compressed"
    would = engine.increase("growpage_compressions_total", mode="observe")
    if mode(engine) == "observe" or would:
        whom = "is observe" if mode(engine) == "observe" else "enforces for others only"
        return warning(
            f"{said}: the roll-out {whom}, so growpage only watches (it would have compressed "
            f"{would:.0f} times)",
            "set mode to enforce, or add to only, in the file of --growpage-rollout",
        )
    if policy(engine) == "full":
        return warning(f"{said}: the policy full never compresses", "--growpage-policy elastic")
    return _missing_hook(engine, said)


def _missing_hook(engine: Engine, said: str) -> Verdict:
    """The first phase of a decision that does not happen, in the order in which they do."""
    rise = {
        phase: engine.increase("growpage_decision_seconds_count", phase=phase)
        for phase in ("decide", "capture", "measure")
    }
    if not rise["decide"]:
        return failure(
            f"{said}: the scheduler takes no decisions, so the scheduler class is not growpage's",
            "leave out any other --scheduler-cls; growpage serve --print-command shows ours",
        )
    if not rise["capture"]:
        return failure(
            f"{said}: no queries are captured, so the attention backend or the worker class is not "
            "growpage's",
            "leave out any other --attention-backend and --worker-cls",
        )
    if not rise["measure"] and policy(engine) not in UNMEASURED:
        return warning(
            f"{said}: no request's attention was measured, since none came to the end of its pages "
            "after its warm-up",
            "a smaller --growpage-min-pages or --growpage-warmup, or a larger pool",
        )
    if policy(engine) == "elastic":
        return warning(
            f"{said}: decisions are taken, and no request has a page to give above its floor",
            "a smaller --growpage-min-pages or --growpage-mass, or --growpage-protect-prompt false",
        )
    return warning(
        f"{said}: decisions are taken, and every boundary grows or finds nothing to evict",
        "a larger --growpage-tau, a --growpage-max-pages, or --growpage-policy elastic",
    )


def refused_growth(engine: Engine) -> Verdict:
    """Which limit keeps requests from growing where the policy wants it."""
    refused = engine.increase_by("growpage_growth_refused_total", "reason")
    total = sum(refused.values())
    granted = engine.increase("growpage_growths_total")
    if not total:
        return ok(f"none; {granted:.0f} steps granted")
    share = total / (total + granted)
    reasons = sorted(refused.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{reason} {count:.0f}" for reason, count in reasons)
    said = f"{total:.0f} of {total + granted:.0f} steps ({share:.0%}) refused, by reason: {shown}"
    if share <= REFUSED_SHARE:
        return ok(said)
    why, remedy = LIMITS.get(reasons[0][0], ("of a reason that this doctor does not know", ""))
    return warning(f"{said}; mostly {why}", remedy or "diagnose with the server's growpage")


def predicted_loss(engine: Engine) -> Verdict:
    """Whether compressions are predicted to cost quality."""
    loss = engine.histogram("growpage_predicted_loss")
    if not loss.count:
        return ok("no compression whose demand had been measured")
    high = loss.quantile(0.95)
    span = ", since the start" if loss.since_start else ""
    said = (
        f"95% of {loss.count:.0f} compressions lose at most {high:.1%} of the attention mass, "
        f"{loss.mean:.1%} on average{span}"
    )
    if high <= HIGH_LOSS:
        return ok(said)
    return warning(
        f"{said}; more than {HIGH_LOSS:.0%} puts answers at risk",
        "a larger --growpage-min-pages (or --growpage-budget), --growpage-floor-loss under "
        "elastic, more KV memory, or a smaller model that leaves more of it",
    )


def use_of_the_budget(engine: Engine) -> Verdict:
    """Whether the budget is so large that it never does anything."""
    demand = engine.histogram("growpage_kv_demand_tokens")
    ended = engine.last("growpage_kv_demand_tokens_count")
    compressed = engine.last("growpage_compressions_total")
    said = (
        f"{compressed:.0f} compressions over {ended:.0f} requests, since the start"
        if ended
        else f"{compressed:.0f} compressions, since the start"
    )
    name = policy(engine)
    if compressed or name == "full" or ended < 20:
        return ok(said)
    needed = f"{demand.mean:.0f} tokens on average, 95% at most {demand.quantile(0.95):.0f}"
    if name == "elastic":
        return ok(f"{said}: there was memory for all of them ({needed})")
    setting = "--growpage-budget" if name == "fixed" else "--growpage-min-pages"
    return warning(
        f"{said}: they would hold {needed}, and none came to its budget",
        f"a {setting} below what requests hold; or leave growpage out where memory is plenty",
    )
