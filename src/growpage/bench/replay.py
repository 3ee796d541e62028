"""Forced replays, contender by contender: what each one's evictions cost, measured.

One engine generates the reference with all the memory that it needs; one engine for each contender
replays it, once for each load. Every part's result is kept in a work folder: a measurement that
was stopped goes on where it was, and another contender may join it later.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from growpage.bench.contenders import Contender
from growpage.bench.distributions import logits_files
from growpage.bench.forced_replay import (
    Reference,
    Replay,
    generate,
    peak_need,
    poisson_arrivals,
    replay,
)
from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.own_process import in_own_process
from growpage.bench.pool import BLOCK_SIZE, Dtype, page_bytes
from growpage.bench.work_folder import claim
from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError

Load = Literal["saturated", "varying"]
"""All requests at once, or as they arrive by chance."""

REFERENCE = Contender(name="reference", settings={"policy": "full"})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Setup(_Frozen):
    """What all contenders of a measurement have in common."""

    model: str
    """The name of the model's folder."""
    prompts: str
    """A hash of all prompts, as token ids by name."""
    requests: int = Field(ge=1)
    new_tokens: int = Field(ge=2)
    """Tokens after which an answer is cut."""
    temperature: float = Field(ge=0)
    """Of the reference's answers; 0 is greedy."""
    concurrency: int = Field(ge=1)
    """Requests served at once, at most, unless a contender says otherwise."""
    mean_gap: float = Field(gt=0)
    """Steps between two arrivals under varying load, on average."""
    exact: bool
    """Whether the KL is over the whole vocabulary."""
    top: int = Field(ge=1, le=20)
    """Tokens watched at each position otherwise."""
    block_size: int = BLOCK_SIZE
    """Tokens a page."""
    dtype: Dtype = "auto"
    """What the model is served in."""
    seed: int = 0

    def arrivals(self, load: Load) -> list[int]:
        """The step at which each request arrives."""
        if load == "saturated":
            return [0] * self.requests
        return poisson_arrivals(self.requests, self.mean_gap, self.seed)


class Provenance(_Frozen):
    """Where and when something was measured."""

    date: str
    machine: dict[str, str | int]
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Provenance:
        """Of this process."""
        return cls(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=describe_machine(),
            versions=describe_versions(),
        )


class Part(_Frozen):
    """One contender under one load."""

    contender: Contender
    load: Load
    pool_pages: int
    concurrency: int
    page_bytes: int
    """Bytes of one of its pages, over all layers."""
    replay: Replay
    provenance: Provenance


class Measurement(_Frozen):
    """All that was measured."""

    setup: Setup
    reference: Reference
    reference_provenance: Provenance
    families: dict[str, str | None]
    """By request."""
    need: dict[Load, int]
    """Pages that full KV takes at its peak."""
    parts: list[Part]


def prompts_hash(prompts: Mapping[str, list[int]]) -> str:
    """What tells these prompts from others."""
    return hashlib.sha256(json.dumps(list(prompts.items())).encode()).hexdigest()[:16]


def exact_bytes(model: Path, requests: int, new_tokens: int, dtype: Dtype = "auto") -> int:
    """Bytes on disk that whole distributions of all answers take at most."""
    return sum(file.bytes for file in logits_files(model, Path(), requests, new_tokens, dtype))


def check_lengths(model: Path, prompts: Mapping[str, list[int]], new_tokens: int) -> None:
    """Refuse requests that are longer than the model's context.

    Raises:
        ConfigError: one is.
    """
    config = json.loads((model / "config.json").read_text())
    limit = config.get("max_position_embeddings")
    name, longest = max(prompts.items(), key=lambda item: len(item[1]))
    if limit is not None and len(longest) + new_tokens > limit:
        raise ConfigError(
            f"question {name!r} has {len(longest)} tokens, and {new_tokens} new ones do not fit "
            f"into the model's context of {limit}: ask for fewer, or leave the question out"
        )


def check(contenders: Sequence[Contender], block_size: int = BLOCK_SIZE) -> None:
    """Refuse what no engine would start with, before the first one is started.

    Raises:
        ConfigError: a contender's settings do not fit pages of so many tokens.
    """
    for contender in contenders:
        if contender.settings is not None:
            try:
                BudgetConfig.of(contender.settings).for_block_size(block_size)
            except ConfigError as error:
                raise ConfigError(f"{contender.name}: {error}") from None


def measure(
    setup: Setup,
    model: Path,
    prompts: Mapping[str, list[int]],
    contenders: Sequence[Contender],
    *,
    work: Path,
    pool: str = "50%",
    loads: Sequence[Load] = ("saturated", "varying"),
    families: Mapping[str, str | None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Measurement:
    """Run whatever is not in the work folder yet.

    Args:
        setup: what all have in common.
        model: the model's folder.
        prompts: token ids by name.
        contenders: what is compared.
        work: where parts are kept.
        pool: pages of a contender's pool, or the share of what full KV takes at its peak with all
            requests at once; a contender's own wins.
        loads: how requests arrive.
        families: of the requests, for the report.
        say: takes a line on each part that is done.

    Raises:
        ConfigError: the work folder belongs to another measurement, or a contender is wrong.
        RuntimeError: an engine failed; its log is in the work folder.
    """
    check(contenders, setup.block_size)
    claim(work / "setup.json", setup)
    stored = _reference(setup, model, prompts, work, say)
    runs = [_Run.of(each, setup, stored.reference, pool) for each in contenders]
    found = {
        (run.contender.name, load): _kept_part(work, run, load) for run in runs for load in loads
    }
    for run in runs:
        missing = [load for load in loads if found[run.contender.name, load] is None]
        if missing:
            for part in in_own_process(
                work / "engine.log", _replay, setup, model, run, missing, work
            ):
                found[run.contender.name, part.load] = part
                say(
                    f"{run.contender.name}, {part.load}: KL {part.replay.kl:.2g}, "
                    f"{part.replay.usage.steps} steps"
                )
    return Measurement(
        setup=setup,
        reference=stored.reference,
        reference_provenance=stored.provenance,
        families=dict(families or dict.fromkeys(prompts)),
        need={load: _need(setup, stored.reference, setup.concurrency, load) for load in loads},
        parts=[part for part in found.values() if part is not None],
    )


class _Stored(_Frozen):
    """The reference's file."""

    reference: Reference
    provenance: Provenance


class _Run(_Frozen):
    """A contender with its memory."""

    contender: Contender
    pool_pages: int
    concurrency: int

    @classmethod
    def of(cls, contender: Contender, setup: Setup, reference: Reference, pool: str) -> _Run:
        concurrency = contender.concurrency or setup.concurrency
        need = _need(setup, reference, concurrency, "saturated")
        shared = contender.model_copy(update={"pool": contender.pool or pool})
        pages = shared.pool_pages(need, need)
        longest = max(answer.length for answer in reference.answers.values())
        least = -(-longest // setup.block_size)
        if contender.policy in ("full", "plain") and pages < least:
            raise ConfigError(
                f"{contender.name}: a pool of {pages} pages cannot hold the longest request, which "
                f"needs {least} with full KV: give it pool={least} or more"
            )
        return cls(contender=contender, pool_pages=pages, concurrency=concurrency)


def _need(setup: Setup, reference: Reference, concurrency: int, load: Load) -> int:
    return peak_need(reference, setup.arrivals(load), concurrency, setup.block_size)


def _kept_part(work: Path, run: _Run, load: Load) -> Part | None:
    file = _part_file(work, run.contender, load)
    if not file.exists():
        return None
    part = Part.model_validate_json(file.read_text())
    kept = _Run(contender=part.contender, pool_pages=part.pool_pages, concurrency=part.concurrency)
    if kept != run:
        raise ConfigError(
            f"{work} holds another contender called {run.contender.name!r}, with "
            f"{kept.contender.settings} in {kept.pool_pages} pages: give this one another name"
        )
    return part


def _part_file(work: Path, contender: Contender, load: Load) -> Path:
    return work / f"{load}-{contender.slug}.json"


def _reference(
    setup: Setup,
    model: Path,
    prompts: Mapping[str, list[int]],
    work: Path,
    say: Callable[[str], None],
) -> _Stored:
    file = work / "reference.json"
    if not file.exists():
        if setup.exact:
            _check_space(work, exact_bytes(model, setup.requests, setup.new_tokens, setup.dtype))
        in_own_process(work / "engine.log", _generate, setup, model, prompts, work)
        say("reference: generated with full KV")
    return _Stored.model_validate_json(file.read_text())


def _check_space(work: Path, needed: int) -> None:
    """A mapped file that cannot be written ends the process without a word: look before."""
    free = shutil.disk_usage(work).free
    if free < needed:
        raise ConfigError(
            f"whole distributions take up to {needed / 2**30:.1f} GiB and the disk of {work} has "
            f"{free / 2**30:.1f} GiB free: make room, or compare the likeliest tokens alone "
            "(--exact-bytes 0)"
        )


def _generate(setup: Setup, model: Path, prompts: Mapping[str, list[int]], work: Path) -> None:
    longest = max(map(len, prompts.values())) + setup.new_tokens
    pages = setup.concurrency * -(-longest // setup.block_size)
    reference = generate(
        _engine(setup, model, REFERENCE, longest, pages, setup.concurrency),
        prompts,
        setup.new_tokens,
        setup.top,
        keep=logits_files(model, work, len(prompts), setup.new_tokens, setup.dtype)
        if setup.exact
        else None,
        temperature=setup.temperature,
        seed=setup.seed,
    )
    _write(work / "reference.json", _Stored(reference=reference, provenance=Provenance.here()))


def _replay(setup: Setup, model: Path, run: _Run, loads: list[Load], work: Path) -> list[Part]:
    stored = _Stored.model_validate_json((work / "reference.json").read_text())
    longest = max(answer.length for answer in stored.reference.answers.values())
    engine = _engine(setup, model, run.contender, longest, run.pool_pages, run.concurrency)
    parts = []
    for load in loads:
        part = Part(
            contender=run.contender,
            load=load,
            pool_pages=run.pool_pages,
            concurrency=run.concurrency,
            page_bytes=page_bytes(
                model, setup.block_size, run.contender.kv_cache_dtype, setup.dtype
            ),
            replay=replay(engine, stored.reference, setup.arrivals(load)),
            provenance=Provenance.here(),
        )
        _write(_part_file(work, run.contender, load), part)
        parts.append(part)
    return parts


def _write(file: Path, content: BaseModel) -> None:
    """Whole or not at all, whenever the process is ended."""
    partial = file.with_suffix(".part")
    partial.write_text(content.model_dump_json())
    partial.replace(file)


def _engine(
    setup: Setup, model: Path, contender: Contender, longest: int, pages: int, concurrency: int
) -> Any:
    from growpage.bench.engine import start_engine
    from growpage.bench.teacher import TEACHER

    return start_engine(
        model,
        contender,
        pool_pages=pages,
        concurrency=concurrency,
        longest=longest,
        block_size=setup.block_size,
        dtype=setup.dtype,
        seed=setup.seed,
        logits_processors=[TEACHER],
    ).llm_engine
