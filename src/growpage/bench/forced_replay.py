"""Replays answers that were given with full KV, token for token, under another policy.

Every policy is then judged at the same positions of the same text: by the KL between what it would
have said there and what full KV said. The engine is vLLM's, in this process.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from math import exp
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from growpage.bench.distributions import LogitsFile
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


class Held(_Record):
    """What one request used."""

    mean_pages: float
    """Pages held, over the steps in which it held any."""
    peak_pages: int
    preemptions: int


class Answer(_Record):
    """A request's answer with full KV."""

    prompt: list[int]
    tokens: list[int]
    logprob: float
    """Of its tokens, on average, in nats."""
    watched: list[list[int]]
    """The most likely token ids at each position, [tokens, top]."""
    logprobs: list[list[float]]
    """Their logprobs."""
    whole: LogitsFile | None
    """Where the logits of every token are, if they were kept."""

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer."""
        return len(self.prompt) + len(self.tokens)


class Reference(_Record):
    """All answers, by their requests' names, and the memory they took."""

    answers: dict[str, Answer]
    usage: Usage


class RequestReplay(_Record):
    """How one request was replayed: means over its tokens, and its memory."""

    kl: float
    """To the reference, in nats."""
    agreement: float
    """Share of positions at which the likeliest token is the reference's."""
    logprob: float
    """Of the reference's tokens, in nats."""
    held: Held


class Replay(_Record):
    """One policy's replay."""

    requests: dict[str, RequestReplay]
    usage: Usage

    @property
    def kl(self) -> float:
        """Mean over requests, in nats."""
        return fmean(request.kl for request in self.requests.values())


def perplexity(logprobs: Sequence[float], tokens: Sequence[int]) -> float:
    """Of all tokens together: from each request's mean logprob and its number of tokens."""
    total = sum(each * count for each, count in zip(logprobs, tokens, strict=True))
    return exp(-total / sum(tokens))


def generate(
    engine: Any,
    prompts: Mapping[str, list[int]],
    new_tokens: int,
    top: int,
    *,
    keep: Sequence[LogitsFile] | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Reference:
    """Answer all prompts, all submitted at once, and keep what might have been said.

    Args:
        engine: vLLM's, in this process, with growpage's scheduler, and memory for all.
        prompts: token ids by name.
        new_tokens: tokens after which an answer is cut.
        top: tokens watched at each position.
        keep: a file for each request's whole distributions; the engine needs the teacher then.
        temperature: 0 is greedy.
        seed: of the answers, above 0.

    Raises:
        RuntimeError: a request was preempted or compressed: the memory did not suffice.
    """
    from vllm import SamplingParams

    from growpage.bench.teacher import transcript

    files = dict(zip(prompts, keep, strict=True)) if keep else {}
    submissions = {
        name: (
            prompt,
            SamplingParams(
                temperature=temperature,
                seed=None if temperature == 0 else seed + index,
                max_tokens=new_tokens,
                logprobs=top,
                extra_args=transcript(files[name]) if name in files else None,
            ),
        )
        for index, (name, prompt) in enumerate(prompts.items())
    }
    outputs, usage, _ = _serve(engine, submissions, [0] * len(prompts))
    if usage.preemptions or usage.compressions:
        raise RuntimeError(
            f"the reference was preempted {usage.preemptions} times and compressed "
            f"{usage.compressions} times; give its engine more pages, and the policy 'full'"
        )
    answers = {}
    for name in prompts:
        output = outputs[name]
        tokens = list(output.token_ids)
        ranked = [
            sorted(row.items(), key=lambda item: item[1].rank)[:top] for row in output.logprobs
        ]
        answers[name] = Answer(
            prompt=prompts[name],
            tokens=tokens,
            logprob=fmean(
                row[token].logprob for row, token in zip(output.logprobs, tokens, strict=True)
            ),
            watched=[[token for token, _ in row] for row in ranked],
            logprobs=[[value.logprob for _, value in row] for row in ranked],
            whole=files.get(name),
        )
    return Reference(answers=answers, usage=usage)


def replay(engine: Any, reference: Reference, arrivals: Sequence[int]) -> Replay:
    """Replay the reference's answers, each request arriving at its step.

    Args:
        engine: vLLM's, in this process, with the teacher.
        reference: what is replayed.
        arrivals: the step before which each request is submitted, in the reference's order.

    Raises:
        RuntimeError: vLLM did not say what it was forced to.
    """
    from growpage.bench.teacher import AGREES, KL, LOGPROB, Watched, lesson, marks

    answers = reference.answers
    submissions = {
        name: (
            answer.prompt,
            lesson(
                name,
                answer.tokens,
                answer.whole or Watched(answer.watched, answer.logprobs),
            ),
        )
        for name, answer in answers.items()
    }
    outputs, usage, held = _serve(engine, submissions, arrivals)
    taken = marks(engine)
    requests = {}
    for name, answer in answers.items():
        if list(outputs[name].token_ids) != answer.tokens:
            raise RuntimeError(f"request {name} did not say what it was forced to")
        mean = taken.pop(name).mean(0)
        requests[name] = RequestReplay(
            kl=float(mean[KL]),
            agreement=float(mean[AGREES]),
            logprob=float(mean[LOGPROB]),
            held=held[name],
        )
    return Replay(requests=requests, usage=usage)


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
) -> tuple[dict[str, Any], Usage, dict[str, Held]]:
    """Serve all requests to their end: their outputs by name, and what it took."""
    scheduler = engine.engine_core.engine_core.scheduler
    ledger = getattr(scheduler, "ledger", None)  # plain vLLM evicts nothing
    compressions, evicted = (ledger.compressions, ledger.evicted_tokens) if ledger else (0, 0)
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
    preempted = Counter(event.request for event in recorder.preempted)
    held = {
        name: Held(mean_pages=fmean(pages), peak_pages=max(pages), preemptions=preempted[name])
        for name, pages in recorder.held_by_request().items()
    }
    usage = Usage(
        steps=recorder.steps,
        mean_pages=fmean(used),
        peak_pages=max(used),
        preemptions=len(recorder.preempted),
        recomputed_tokens=recorder.recomputed_tokens,
        compressions=ledger.compressions - compressions if ledger else 0,
        evicted_tokens=ledger.evicted_tokens - evicted if ledger else 0,
    )
    return outputs, usage, held
