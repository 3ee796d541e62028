"""Teacher forcing in vLLM: every request says given tokens, and what it would have said is judged.

Give :data:`TEACHER` to vLLM as one of its ``logits_processors``, and each request to be forced a
:func:`lesson`; a request with a :func:`transcript` speaks freely, and all that it might have said
is written down. The engine must run in this process, so that the marks can be read, and without
asynchronous scheduling, under which a step starts before the last one's token is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from vllm import SamplingParams
from vllm.logits_process import LogitsProcessor as RequestLogitsProcessor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from growpage.bench.distributions import LogitsFile
from growpage.bench.divergence import divergence, exact_divergence

TEACHER = "growpage.bench.teacher:Teacher"
"""The logits processor's name, as vLLM loads it."""

LESSON, TRANSCRIPT = "lesson", "transcript"

KL, AGREES, LOGPROB = range(3)
"""A position's marks: KL to the reference in nats; 1 if the likeliest token is the reference's,
else 0; the logprob of the token that was forced."""


Judge = Callable[[int, torch.Tensor], tuple[float, float]]
"""KL and agreement at a position, of logprobs [vocabulary] in float32."""


@dataclass(frozen=True)
class Watched:
    """The reference's likeliest tokens and their logprobs, each [tokens, watched]."""

    tokens: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]


def lesson(name: str, tokens: Sequence[int], reference: Watched | LogitsFile) -> SamplingParams:
    """Sampling parameters that force a request.

    Args:
        name: what its marks go under.
        tokens: what it has to say, as token ids.
        reference: what it is compared to at each position.
    """
    return SamplingParams(
        temperature=0,
        max_tokens=len(tokens),
        ignore_eos=True,
        # vLLM copies it deeply: no tensors here.
        extra_args={LESSON: (name, tuple(tokens), reference)},
    )


def transcript(file: LogitsFile) -> dict[str, Any]:
    """``extra_args`` of a request whose logits are to be kept in ``file``."""
    return {TRANSCRIPT: file.model_dump()}


def marks(engine: Any) -> dict[str, torch.Tensor]:
    """The marks given so far in an in-process engine, by name: [tokens, 3], in float64.

    They are of the model's own words, before the forcing; NaN at positions that were not reached.

    Raises:
        LookupError: the engine was started without :data:`TEACHER`.
    """
    executor = engine.engine_core.engine_core.model_executor
    for processor in executor.driver_worker.worker.model_runner.input_batch.logitsprocs.all:
        if isinstance(processor, Teacher):
            return processor.marks
    raise LookupError(f"the engine has no teacher: start it with logits_processors=[{TEACHER!r}]")


class Teacher(AdapterLogitsProcessor):
    """Leaves no choice but the given token, at each position of each request with a lesson."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.marks: dict[str, torch.Tensor] = {}

    def is_argmax_invariant(self) -> bool:
        """No: it decides the argmax."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """vLLM's hook, called again when a preempted request resumes: its marks are continued."""
        asked = params.extra_args or {}
        if TRANSCRIPT in asked:
            return partial(_keep, LogitsFile.model_validate(asked[TRANSCRIPT]).open())
        if LESSON not in asked:
            return None
        name, tokens, reference = asked[LESSON]
        empty = torch.full((len(tokens), 3), torch.nan, dtype=torch.double)
        judge = _by_all(reference) if isinstance(reference, LogitsFile) else _by_some(reference)
        return partial(_force, tokens, judge, self.marks.setdefault(name, empty))


def _by_some(watched: Watched) -> Judge:
    """Judge by the watched tokens, and one class for all others."""
    all_tokens, all_logprobs = torch.tensor(watched.tokens), torch.tensor(watched.logprobs)

    def judge(position: int, logprobs: torch.Tensor) -> tuple[float, float]:
        tokens, reference = all_tokens[position], all_logprobs[position]
        ours = reference[tokens == logprobs.argmax()]
        agrees = len(ours) > 0 and bool(ours.max() >= reference.max())
        return float(divergence(reference, logprobs[tokens])), float(agrees)

    return judge


def _by_all(file: LogitsFile) -> Judge:
    """Judge by every token of the vocabulary."""
    logits = file.open()

    def judge(position: int, logprobs: torch.Tensor) -> tuple[float, float]:
        reference = logits[position].float().log_softmax(-1)
        # Logits have 16 bits: where two tokens are likeliest, either agrees.
        agrees = bool(reference[logprobs.argmax()] >= reference.max())
        return float(exact_divergence(reference, logprobs)), float(agrees)

    return judge


def _keep(kept: torch.Tensor, said: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Write down one row of logits, [vocabulary], and leave it as it is."""
    kept[len(said)] = logits
    return logits


def _force(
    tokens: Sequence[int],
    judge: Judge,
    taken: torch.Tensor,
    said: Sequence[int],
    logits: torch.Tensor,
) -> torch.Tensor:
    """Judge one row of logits, [vocabulary], and force its token."""
    # In a chunk of a prefill vLLM discards the row; the chunk's successor overwrites the marks.
    position = len(said)
    token = tokens[position]
    logprobs = logits.log_softmax(-1)
    taken[position] = torch.tensor([*judge(position, logprobs), float(logprobs[token])])
    forced = torch.full_like(logits, -torch.inf)
    forced[token] = 0
    return forced
