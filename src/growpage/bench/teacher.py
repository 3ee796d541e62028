"""Teacher forcing in vLLM: every request says given tokens, and what it would have said is noted.

Give :data:`TEACHER` to vLLM as one of its ``logits_processors``, and each request to be forced a
:func:`lesson`. The engine must run in this process, so that the notes can be read, and without
asynchronous scheduling, under which a step starts before the last one's token is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from vllm import SamplingParams
from vllm.logits_process import LogitsProcessor as RequestLogitsProcessor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

TEACHER = "growpage.bench.teacher:Teacher"
"""The logits processor's name, as vLLM loads it."""

KEY = "teacher"


def lesson(name: str, tokens: Sequence[int], watched: Sequence[Sequence[int]]) -> SamplingParams:
    """Sampling parameters that force a request.

    Args:
        name: what its notes go under.
        tokens: what it has to say, as token ids.
        watched: token ids whose logprobs are noted at each position, [tokens, watched].

    Raises:
        ValueError: ``watched`` has not one row for each token.
    """
    if len(tokens) != len(watched):
        raise ValueError(f"{name} has {len(tokens)} tokens, but {len(watched)} rows to watch")
    content = {"name": name, "tokens": list(tokens), "watched": [list(row) for row in watched]}
    return SamplingParams(
        temperature=0, max_tokens=len(tokens), ignore_eos=True, extra_args={KEY: content}
    )


def notes(engine: Any) -> dict[str, torch.Tensor]:
    """The logprobs noted so far in an in-process engine, by name: [tokens, watched], in float32.

    They are those of the model, before the forcing; NaN at positions that were not reached.

    Raises:
        LookupError: the engine was started without :data:`TEACHER`.
    """
    executor = engine.engine_core.engine_core.model_executor
    for processor in executor.driver_worker.worker.model_runner.input_batch.logitsprocs.all:
        if isinstance(processor, Teacher):
            return processor.notes
    raise LookupError(f"the engine has no teacher: start it with logits_processors=[{TEACHER!r}]")


class Teacher(AdapterLogitsProcessor):
    """Leaves no choice but the given token, at each position of each request with a lesson."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.notes: dict[str, torch.Tensor] = {}

    def is_argmax_invariant(self) -> bool:
        """No: it decides the argmax."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """vLLM's hook, called again when a preempted request resumes: its notes are continued."""
        content = (params.extra_args or {}).get(KEY)
        if content is None:
            return None
        watched = torch.tensor(content["watched"])
        taken = self.notes.setdefault(content["name"], torch.full(watched.shape, torch.nan))
        return partial(_force, content["tokens"], watched, taken)


def _force(
    tokens: Sequence[int],
    watched: torch.Tensor,
    taken: torch.Tensor,
    said: Sequence[int],
    logits: torch.Tensor,
) -> torch.Tensor:
    """Note the logprobs of one row of logits, [vocabulary], and force its token."""
    # In a chunk of a prefill vLLM discards the row; the chunk's successor overwrites the note.
    position = len(said)
    taken[position] = logits.log_softmax(-1)[watched[position]]
    forced = torch.full_like(logits, -torch.inf)
    forced[tokens[position]] = 0
    return forced
