"""The course of demand: every measurement of every request, with full KV.

The policy `every` at a rate of 1 never evicts, and has demand measured before each boundary, that
is, once a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from growpage.bench.contenders import Contender
from growpage.bench.own_process import in_own_process
from growpage.bench.replay import Provenance, Setup, check
from growpage.bench.subject import Subject
from growpage.budget.demand import Demand
from growpage.budget.errors import ConfigError


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Point(_Record):
    """One measurement."""

    position: int
    """Tokens cached, all of the request's."""
    demand: Demand


class Course(_Record):
    """One request's."""

    prompt_tokens: int
    answer_tokens: int
    points: list[Point]
    """In the order of positions."""


class Observed(_Record):
    """All requests', measured in one way."""

    setup: Setup
    contender: Contender
    courses: dict[str, Course]
    provenance: Provenance

    @property
    def mass(self) -> float:
        """The p of D_p."""
        return float((self.contender.settings or {})["mass"])


MEASURING = ("beta_short", "beta_long", "warmup", "equal_norm", "demand_over_heads")
"""Settings that change what is measured, and nothing else."""


def contender(mass: float, settings: Sequence[str] = ()) -> Contender:
    """Measures demand from the first boundary on, and never evicts.

    Args:
        mass: the p of D_p.
        settings: further ones of :data:`MEASURING`, each as ``key=value``.

    Raises:
        ConfigError: one of them is wrong, or is another setting.
    """
    for each in settings:
        if each.partition("=")[0].strip() not in MEASURING:
            raise ConfigError(
                f"{each!r} does not change how demand is measured; give one of "
                f"{', '.join(MEASURING)}, as key=value"
            )
    own = ",".join((f"mass={mass:g}", *settings))
    return Contender.of(
        f"demand {own.replace('=', ' ')}=every:growth_rate=1,min_pages=2,track_entropy=true,{own}"
    )


def observe(
    subject: Subject, contenders: Iterable[Contender], say: Callable[[str], None]
) -> list[Observed]:
    """Serve the requests once for each, unless its file is in the work folder.

    Args:
        subject: what is served.
        contenders: of :func:`contender`.
        say: takes a line on each that is done.

    Raises:
        ConfigError: a contender is wrong, or its file belongs to another subject.
        RuntimeError: an engine failed; its log is in the work folder.
    """
    wanted = list(contenders)
    check(wanted, subject.setup.block_size)
    subject.work.mkdir(parents=True, exist_ok=True)
    found = []
    for each in wanted:
        file = subject.work / f"{each.slug}.json"
        if not file.exists():
            in_own_process(
                subject.work / "engine.log",
                _observe,
                subject.setup,
                subject.model,
                subject.prompts,
                each,
                file,
            )
            say(f"{each.name}: measured")
        found.append(_kept(file, subject.setup))
    return found


def _kept(file: Path, setup: Setup) -> Observed:
    try:
        kept = Observed.model_validate_json(file.read_text())
    except ValidationError:
        raise ConfigError(f"{file} holds no demand; give another work folder") from None
    if kept.setup != setup:
        raise ConfigError(
            f"{file} is of other requests or of another model; give another work folder"
        )
    return kept


def _observe(
    setup: Setup, model: Path, prompts: Mapping[str, list[int]], measuring: Contender, file: Path
) -> None:
    from growpage.bench.engine import start_engine

    longest = max(map(len, prompts.values())) + setup.new_tokens
    # One page more than a request fills: a capacity is one step ahead of it.
    pages = setup.concurrency * (-(-longest // setup.block_size) + 1)
    engine = start_engine(
        model,
        measuring,
        pool_pages=pages,
        concurrency=setup.concurrency,
        longest=longest,
        block_size=setup.block_size,
        dtype=setup.dtype,
        seed=setup.seed,
    ).llm_engine
    observed = Observed(
        setup=setup,
        contender=measuring,
        courses=take_courses(engine, prompts, setup),
        provenance=Provenance.here(),
    )
    partial = file.with_suffix(".part")
    partial.write_text(observed.model_dump_json())
    partial.replace(file)


def take_courses(engine: Any, prompts: Mapping[str, list[int]], setup: Setup) -> dict[str, Course]:
    """Serve all prompts to their end, and take every measurement.

    Args:
        engine: vLLM's, in this process and synchronous, under :func:`contender`.
        prompts: token ids by name.
        setup: how they are answered.

    Raises:
        RuntimeError: a request failed, or was evicted from.
    """
    from vllm import SamplingParams

    scheduler = engine.engine_core.engine_core.scheduler
    names: dict[str, str] = {}
    for index, (name, prompt) in enumerate(prompts.items()):
        sampling = SamplingParams(
            temperature=setup.temperature,
            seed=None if setup.temperature == 0 else setup.seed + index,
            max_tokens=setup.new_tokens,
        )
        names[engine.add_request(name, {"prompt_token_ids": prompt}, sampling)] = name
    points: dict[str, dict[int, Point]] = {name: {} for name in prompts}
    lengths: dict[str, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                (answer,) = output.outputs
                if answer.finish_reason not in ("stop", "length"):
                    raise RuntimeError(f"request {output.request_id} failed: {answer.stop_reason}")
                lengths[output.request_id] = len(answer.token_ids)
        # A report arrives with the step that it is of, and the next step's decision uses it up.
        for request_id, account in scheduler.pages.accounts.items():
            if account.report is not None:
                taken = Point(position=account.report.position, demand=account.report.demand)
                points[names[request_id]][taken.position] = taken
    ledger = scheduler.ledger
    if ledger.compressions or ledger.preemptions:
        raise RuntimeError(
            f"{ledger.compressions} compressions and {ledger.preemptions} preemptions where there "
            "should be none: the pool did not suffice"
        )
    return {
        name: Course(
            prompt_tokens=len(prompt),
            answer_tokens=lengths[name],
            points=[points[name][at] for at in sorted(points[name])],
        )
        for name, prompt in prompts.items()
    }
