"""How much of a run growpage itself took: the time by phase that its own parts tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

from growpage.engine.messages import ATTRIBUTE


class PhaseWatch:
    """Adds up what the worker says of each step, and the time of the scheduler's decisions.

    Stands in for two methods of an engine's scheduler while it is attached, as
    :class:`growpage.bench.recorder.Recorder` does. Without the plugin there is nothing to add up.

    Args:
        scheduler: vLLM's, with or without the plugin.
        clock: seconds, monotonic.
    """

    def __init__(self, scheduler: Any, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._scheduler = scheduler
        self._enforcement = getattr(scheduler, "enforcement", None)
        self._clock = clock

    def attach(self) -> None:
        """Start to watch."""
        if self._enforcement is None:
            return
        self._update = self._scheduler.update_from_output
        self._decide = self._enforcement.decide
        self._scheduler.update_from_output = self._on_update
        self._enforcement.decide = self._on_decide

    def detach(self) -> None:
        """Leave the scheduler as it was."""
        if self._enforcement is not None:
            del self._scheduler.update_from_output
            del self._enforcement.decide

    def _on_update(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        answer = getattr(model_runner_output, ATTRIBUTE, None)
        if answer is not None:
            for phase, durations in answer.seconds.items():
                self.seconds[phase] += sum(durations)
        return self._update(scheduler_output, model_runner_output)

    def _on_decide(self, *args: Any) -> Any:
        start = self._clock()
        plans = self._decide(*args)
        self.seconds["decide"] += self._clock() - start
        return plans
