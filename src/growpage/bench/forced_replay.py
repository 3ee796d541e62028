"""Replays answers that were given with full KV, token for token, under another policy.

Every policy is then judged at the same positions of the same text: by the KL between what it would
have said there and what full KV said. The engine is vLLM's, in this process.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from growpage.bench.divergence import divergence
from growpage.bench.recorder import Recorder


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Usage(_Record):
    """What one run of the engine used."""

    steps: int
    mean_pages: float
    """Pages of the pool in use, over the steps in which any request was served."""
    peak_pages: int
    preemptions: int
    recomputed_tokens: int
    compressions: int
    evicted_tokens: int


class Answer(_Record):
    """A request's greedy answer with full KV."""

    prompt: list[int]
    tokens: list[int]
    watched: list[list[int]]
    """The most likely token ids at each position, [tokens, top]."""
    logprobs: list[list[float]]
    """Their logprobs."""


class Reference(_Record):
    """All answers, by their requests' names, and the memory they took."""

    answers: dict[str, Answer]
    usage: Usage


class Replay(_Record):
    """One policy's replay."""

    kl: float
    """Mean over all tokens, in nats."""
    kl_by_request: dict[str, float]
    usage: Usage


def generate(engine: Any, prompts: Mapping[str, list[int]], new_tokens: int, top: int) -> Reference:
    """Answer all prompts greedily, all submitted at once, and keep the likeliest tokens' logprobs.

    Args:
        engine: vLLM's, in this process, with growpage's scheduler, and memory for all.
        prompts: token ids by name.
        new_tokens: tokens after which an answer is cut.
        top: tokens watched at each position.

    Raises:
        RuntimeError: a request was preempted or compressed: the memory did not suffice.
    """
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, logprobs=top)
    submissions = {name: (prompt, sampling) for name, prompt in prompts.items()}
    outputs, usage = _serve(engine, submissions, [0] * len(prompts))
    if usage.preemptions or usage.compressions:
        raise RuntimeError(
            f"the reference was preempted {usage.preemptions} times and compressed "
            f"{usage.compressions} times; give its engine more pages, and the policy 'full'"
        )
    answers = {}
    for name, output in outputs.items():
        ranked = [
            sorted(row.items(), key=lambda item: item[1].rank)[:top] for row in output.logprobs
        ]
        answers[name] = Answer(
            prompt=prompts[name],
            tokens=list(output.token_ids),
            watched=[[token for token, _ in row] for row in ranked],
            logprobs=[[value.logprob for _, value in row] for row in ranked],
        )
    return Reference(answers={name: answers[name] for name in prompts}, usage=usage)


def replay(engine: Any, reference: Reference, arrivals: Sequence[int]) -> Replay:
    """Replay the reference's answers, each request arriving at its step.

    Args:
        engine: vLLM's, in this process, with growpage's scheduler and the teacher.
        reference: what is replayed.
        arrivals: the step before which each request is submitted, in the reference's order.

    Raises:
        RuntimeError: vLLM did not say what it was forced to.
    """
    import torch

    from growpage.bench.teacher import lesson, notes

    answers = reference.answers
    submissions = {
        name: (answer.prompt, lesson(name, answer.tokens, answer.watched))
        for name, answer in answers.items()
    }
    outputs, usage = _serve(engine, submissions, arrivals)
    taken = notes(engine)
    each: dict[str, torch.Tensor] = {}
    for name, answer in answers.items():
        if list(outputs[name].token_ids) != answer.tokens:
            raise RuntimeError(f"request {name} did not say what it was forced to")
        each[name] = divergence(torch.tensor(answer.logprobs), taken.pop(name))
    return Replay(
        kl=float(torch.cat(list(each.values())).mean()),
        kl_by_request={name: float(kl.mean()) for name, kl in each.items()},
        usage=usage,
    )


def poisson_arrivals(count: int, mean_gap: float, seed: int) -> list[int]:
    """Steps at which ``count`` requests arrive, ``mean_gap`` steps apart on average, from 0 on."""
    chance, at, steps = random.Random(seed), 0.0, []
    for _ in range(count):
        steps.append(int(at))
        at += chance.expovariate(1 / mean_gap)
    return steps


def peak_need(reference: Reference, arrivals: Sequence[int], concurrency: int, page: int) -> int:
    """Pages of ``page`` tokens that full KV takes at its peak, if the pool is large enough."""
    queue = deque(zip(arrivals, reference.answers.values(), strict=True))
    running: list[tuple[int, Answer]] = []
    step = peak = 0
    while queue or running:
        while queue and queue[0][0] <= step and len(running) < concurrency:
            running.append((step, queue.popleft()[1]))
        peak = max(
            peak, sum(-(-(len(answer.prompt) + step - begun) // page) for begun, answer in running)
        )
        step += 1
        running = [(at, answer) for at, answer in running if step - at < len(answer.tokens)]
    return peak


def _serve(
    engine: Any, submissions: Mapping[str, tuple[list[int], Any]], arrivals: Sequence[int]
) -> tuple[dict[str, Any], Usage]:
    """Serve all requests to their end: their outputs by name, and what it took."""
    scheduler = engine.engine_core.engine_core.scheduler
    ledger = scheduler.ledger
    compressions, evicted = ledger.compressions, ledger.evicted_tokens
    names: dict[str, str] = {}
    outputs: dict[str, Any] = {}
    recorder = Recorder(scheduler, names)
    recorder.attach()
    queue, step = deque(zip(arrivals, submissions.items(), strict=True)), 0
    while queue or engine.has_unfinished_requests():
        while queue and queue[0][0] <= step:
            _, (name, (prompt, sampling)) = queue.popleft()
            names[engine.add_request(name, {"prompt_token_ids": prompt}, sampling)] = name
        if engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    outputs[output.request_id] = output.outputs[0]
        step += 1
    recorder.detach()
    used = recorder.timeline(recorder.steps).pages_used
    return outputs, Usage(
        steps=recorder.steps,
        mean_pages=fmean(used),
        peak_pages=max(used),
        preemptions=len(recorder.preempted),
        recomputed_tokens=recorder.recomputed_tokens,
        compressions=ledger.compressions - compressions,
        evicted_tokens=ledger.evicted_tokens - evicted,
    )
