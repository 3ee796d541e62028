"""Every contender answers the same problems, in an engine process of its own.

Each answer is written to the work folder when it is complete: a run that was stopped goes on with
the problems that have none.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from growpage.bench.contenders import Contender
from growpage.bench.pool import BLOCK_SIZE, Dtype
from growpage.bench.problems import Problem
from growpage.bench.work_folder import claim
from growpage.budget.errors import ConfigError

FULL = Contender(name="full", settings={"policy": "full"})
"""What the others are compared to; it answers first, with memory for all."""
PROGRESS_S = 30
"""Seconds between two lines of progress."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Setup(_Record):
    """Everything but the contender that decides an answer."""

    model: str
    """The name of the model's folder."""
    problems: str
    """A digest of the problems."""
    samples: int = Field(ge=1)
    """Answers to each problem."""
    temperature: float = Field(ge=0)
    max_tokens: int = Field(ge=1)
    """Tokens after which an answer is cut, where its problem says nothing."""
    concurrency: int = Field(ge=1)
    """Requests at once, at most."""
    pool: str | None = Field(default=None, pattern=r"^([1-9]\d*|\d+(\.\d+)?%)$")
    """Pages, or the share of what full KV took at its peak; default: memory for all."""
    raw: bool = False
    """Whether problems are given as they are, without the model's chat template."""
    async_scheduling: bool = True
    """Whether a step is scheduled before the last one has ended, as vLLM does by default."""
    block_size: int = BLOCK_SIZE
    dtype: Dtype = "auto"
    """What the model is served in."""
    seed: int = 0


class Response(_Record):
    """One answer, and the memory that it took."""

    problem: str
    sample: int
    text: str
    tokens: list[int]
    prompt_tokens: int
    finished: bool
    """Whether the model ended it; false where it was cut."""
    steps: int
    """Steps in which it held pages."""
    page_steps: int
    """Pages held, summed over these steps."""
    peak_pages: int
    pool_peak: int
    """Most pages that all requests together held while it ran."""
    preemptions: int

    @property
    def mean_pages(self) -> float:
        """Pages held, over its steps."""
        return self.page_steps / max(1, self.steps)


@dataclass(frozen=True)
class Question:
    """A problem as the engine gets it."""

    id: str
    prompt: list[int]
    max_tokens: int


@dataclass
class PageMeter:
    """Takes down what requests hold, at each step of a scheduler in this process."""

    scheduler: Any
    names: Mapping[str, str]
    """Our names of requests, by vLLM's ids."""
    steps: Counter[str] = field(default_factory=Counter)
    page_steps: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)
    pool_peak: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)

    def attach(self) -> None:
        """Start to watch."""
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._observe

    def detach(self) -> None:
        """Leave the scheduler as it was."""
        del self.scheduler.schedule

    def _observe(self, *args: Any, **kwargs: Any) -> Any:
        from growpage.bench.recorder import pages_by_request

        output = self._schedule(*args, **kwargs)
        for request in output.preempted_req_ids or ():
            self.preemptions[self.names.get(request, request)] += 1
        held = {
            self.names[request]: pages
            for request, pages in pages_by_request(self.scheduler).items()
            if pages and request in self.names
        }
        together = sum(held.values())
        for name, pages in held.items():
            self.steps[name] += 1
            self.page_steps[name] += pages
            self.peak[name] = max(self.peak[name], pages)
            self.pool_peak[name] = max(self.pool_peak[name], together)
        return output


def questions_of(problems: Sequence[Problem], setup: Setup, model: Path) -> list[Question]:
    """The problems as token ids, by the model's chat template unless the setup says raw.

    Raises:
        ConfigError: the model has no chat template, and the setup does not say raw.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if not setup.raw and not tokenizer.chat_template:
        raise ConfigError(f"{model.name} has no chat template: give --raw")

    def prompt(problem: Problem) -> list[int]:
        if setup.raw:
            shown = "".join(f"{asked}\n\n{answer}\n\n" for asked, answer in problem.examples)
            return list(tokenizer(f"{shown}{problem.question}\n\n").input_ids)
        turns = [
            {"role": role, "content": text}
            for example in problem.examples
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        turns.append({"role": "user", "content": problem.question})
        return list(
            tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        )

    return [
        Question(each.id, prompt(each), each.max_tokens or setup.max_tokens) for each in problems
    ]


def demands_of(problems: Sequence[Problem], model: Path) -> dict[str, int]:
    """Tokens that must be remembered, by the ids of those problems that say what."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return {
        each.id: len(tokenizer(each.remember, add_special_tokens=False).input_ids)
        for each in problems
        if each.remember is not None
    }


def digest(problems: Iterable[Problem]) -> str:
    """Sixteen characters that differ wherever any problem does."""
    text = "\n".join(problem.model_dump_json() for problem in problems)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_full(contenders: Sequence[Contender]) -> list[Contender]:
    """All contenders, full KV first, which is added where it is not among them.

    Raises:
        ConfigError: another contender has its name, in a table or as a file.
    """
    full = next((each for each in contenders if is_full(each)), FULL)
    others = [each for each in contenders if each is not full]
    if any(full.slug == each.slug for each in others):
        raise ConfigError(f"{full.name!r} is full KV's name here: call that contender otherwise")
    return [full, *others]


def is_full(contender: Contender) -> bool:
    """Whether a contender is full KV as the model stores it, with memory for all."""
    return (
        contender.policy == "full"
        and contender.kv_cache_dtype == "auto"
        and contender.pool is None
        and contender.concurrency is None
    )


def answer_all(
    setup: Setup,
    model: Path,
    contenders: Sequence[Contender],
    questions: Sequence[Question],
    work: Path,
    tell: Callable[[str], None],
) -> dict[str, list[Response]]:
    """Every contender's answers; those that the work folder has are not given again.

    Args:
        setup: what all have in common.
        model: the model's folder.
        contenders: full KV first (see :func:`with_full`).
        questions: what is asked.
        work: the folder for answers.
        tell: takes a line of progress.

    Raises:
        ConfigError: the work folder belongs to another setup or contender, or a pool is too small.
    """
    claim(work / "setup.json", setup)
    found: dict[str, list[Response]] = {}
    need = 0
    for contender in contenders:
        claim(work / f"{contender.slug}.contender.json", contender)
        file = work / f"{contender.slug}.answers.jsonl"
        pages = _pool_pages(contender, setup, questions, need)
        given = read_responses(file)
        missing = len(questions) * setup.samples - len(given)
        if missing:
            tell(f"{contender.name}: {missing} answers to give, {pages} pages")
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
                own.submit(_answer, setup, model, contender, questions, pages, file).result()
            given = read_responses(file)
        found[contender.name] = given
        need = need or max(each.pool_peak for each in given)
    return found


def read_responses(file: Path) -> list[Response]:
    """The complete answers in a file; a line that was cut off when the run was stopped is not."""
    if not file.exists():
        return []
    complete = file.read_text("utf-8").rpartition("\n")[0]
    return [Response.model_validate_json(line) for line in complete.splitlines()]


def longest_pages(questions: Sequence[Question], block_size: int) -> int:
    """Pages of the longest request, prompt and answer."""
    longest = max(len(each.prompt) + each.max_tokens for each in questions)
    return -(-longest // block_size)


def _pool_pages(
    contender: Contender, setup: Setup, questions: Sequence[Question], need: int
) -> int:
    """Pages of a contender's pool; full KV, which comes first and has no need yet, gets all."""
    longest = longest_pages(questions, setup.block_size)
    roomy = longest * (contender.concurrency or setup.concurrency)
    if not need:
        return roomy
    common = Contender(name="", settings=None, pool=setup.pool).pool_pages(need, roomy)
    pages = contender.pool_pages(need, common)
    if pages < longest:
        raise ConfigError(
            f"{contender.name}: a pool of {pages} pages cannot hold the longest request, which may "
            f"take {longest}: give --pool more, or --max-tokens less"
        )
    return pages


def _answer(
    setup: Setup,
    model: Path,
    contender: Contender,
    questions: Sequence[Question],
    pages: int,
    file: Path,
) -> None:
    """Give the answers that ``file`` lacks, and append each to it."""
    from vllm import SamplingParams

    from growpage.bench.engine import start_engine

    given = read_responses(file)
    # Whatever follows the last whole line goes.
    file.write_text("".join(f"{each.model_dump_json()}\n" for each in given))
    done = {(each.problem, each.sample) for each in given}
    llm = start_engine(
        model,
        contender,
        pool_pages=pages,
        concurrency=contender.concurrency or setup.concurrency,
        longest=longest_pages(questions, setup.block_size) * setup.block_size,
        block_size=setup.block_size,
        async_scheduling=setup.async_scheduling,
        dtype=setup.dtype,
        seed=setup.seed,
    )
    engine = llm.llm_engine
    names: dict[str, str] = {}
    asked: dict[str, tuple[Question, int]] = {}
    meter = PageMeter(engine.engine_core.engine_core.scheduler, names)
    meter.attach()
    for at, question in enumerate(questions):
        for sample in range(setup.samples):
            if (question.id, sample) in done:
                continue
            name = f"{question.id}#{sample}"
            asked[name] = question, sample
            sampling = SamplingParams(
                temperature=setup.temperature,
                max_tokens=question.max_tokens,
                seed=setup.seed + at * setup.samples + sample if setup.temperature else None,
            )
            names[engine.add_request(name, {"prompt_token_ids": question.prompt}, sampling)] = name
    told = time.monotonic()
    with file.open("a", encoding="utf-8") as log:
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    name = output.request_id
                    log.write(_response(*asked[name], output, meter, name).model_dump_json() + "\n")
                    log.flush()
                    done.add((asked[name][0].id, asked[name][1]))
            if time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                total = len(questions) * setup.samples
                print(f"{contender.name}: {len(done)} of {total} answers", flush=True)
    meter.detach()


def _response(
    question: Question, sample: int, output: Any, meter: PageMeter, name: str
) -> Response:
    answer = output.outputs[0]
    return Response(
        problem=question.id,
        sample=sample,
        text=answer.text,
        tokens=list(answer.token_ids),
        prompt_tokens=len(question.prompt),
        finished=answer.finish_reason == "stop",
        steps=meter.steps[name],
        page_steps=meter.page_steps[name],
        peak_pages=meter.peak[name],
        pool_peak=meter.pool_peak[name],
        preemptions=meter.preemptions[name],
    )
