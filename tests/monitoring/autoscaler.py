"""What an autoscaler decides, for tests of what it tells Prometheus of it."""

from __future__ import annotations

from growpage.fleet.controller import Acted, Record
from growpage.fleet.decision import Action, DataState, Decision
from growpage.fleet.targets import Target


def record(model: str, state: DataState, error: str = "") -> Record:
    """A decision for a model: to hold, or to add a replica in vain if there is an error."""
    target = Target("llm", "Deployment", "chat")
    if error:
        decision = Decision(model, target, Action.SCALE_OUT, 2, 3, "KV usage is 0.95", state)
        return Record(None, decision, Acted.FAILED, error)
    decision = Decision(model, target, Action.NO_ACTION, 2, 2, "KV usage is 0.50", state)
    return Record(None, decision, Acted.NOTHING_TO_DO)
