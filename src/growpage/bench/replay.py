"""What eviction costs, policy by policy, in the KL of forced replays.

``python -m growpage.bench.replay PROMPTS.jsonl --work FOLDER --out RESULT.json``

One engine generates the reference with all the memory that it needs; one engine for each policy
replays it in the same small pool, once with all requests at once and once as they arrive. Each
part's result is kept in the work folder: a measurement that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field

from growpage.bench.divergence import ratio_interval
from growpage.bench.forced_replay import (
    Reference,
    Replay,
    generate,
    peak_need,
    poisson_arrivals,
    replay,
)
from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.pool import BLOCK_SIZE, page_bytes

BASE = "fixed"
"""The policy that the others are compared to, with the prompt protected or not as they have it."""

UNPROTECTED = ", prompt unprotected"


class Setup(BaseModel):
    """Everything that decides the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    """The name of the model's folder."""
    prompts: str
    """The name of the file of prompts."""
    requests: int = Field(ge=1)
    new_tokens: int = Field(ge=2)
    """Tokens after which an answer is cut."""
    concurrency: int = Field(ge=1)
    """Requests served at once, at most."""
    pool_pages: int = Field(ge=1)
    mean_gap: float = Field(gt=0)
    """Steps between two arrivals under varying load, on average."""
    top: int = Field(ge=1, le=20)
    """Tokens watched at each position."""
    block_size: int = BLOCK_SIZE
    seed: int = 0

    def policies(self) -> dict[str, dict[str, Any]]:
        """The budgets that are compared, by name."""
        share = self.pool_pages // self.concurrency * self.block_size
        budgets: dict[str, dict[str, Any]] = {
            BASE: {"policy": "fixed", "budget": share},
            "elastic": {"policy": "elastic", "giver": "largest"},
            "elastic, least loss": {"policy": "elastic", "giver": "least_loss"},
        }
        unprotected = {
            f"{name}{UNPROTECTED}": {**settings, "protect_prompt": False}
            for name, settings in budgets.items()
        }
        return {"full": {"policy": "full"}, **budgets, **unprotected}

    def arrivals(self) -> dict[str, list[int]]:
        """The steps at which requests arrive, by the name of the load."""
        return {
            "saturated": [0] * self.requests,
            "varying": poisson_arrivals(self.requests, self.mean_gap, self.seed),
        }


def measure(setup: Setup, model: Path, prompts: Mapping[str, list[int]], work: Path) -> None:
    """Run whatever part is not in the work folder yet.

    Raises:
        ValueError: the work folder belongs to another measurement.
    """
    work.mkdir(parents=True, exist_ok=True)
    setup_file, reference_file = work / "setup.json", work / "reference.json"
    if not setup_file.exists():
        setup_file.write_text(setup.model_dump_json(indent=2))
    elif Setup.model_validate_json(setup_file.read_text()) != setup:
        raise ValueError(f"{work} holds parts of another measurement; give an empty folder")
    if not reference_file.exists():
        _in_own_process(_run_reference, setup, model, prompts, reference_file)
    for policy in setup.policies():
        missing = [load for load in setup.arrivals() if not _part(work, load, policy).exists()]
        if missing:
            _in_own_process(_run_policy, setup, model, policy, missing, work)


def report(setup: Setup, work: Path) -> dict[str, Any]:
    """The result of a finished measurement, ready for JSON."""
    reference = Reference.model_validate_json((work / "reference.json").read_text())
    loads: dict[str, dict[str, Any]] = {}
    for load in setup.arrivals():
        replays = {
            policy: Replay.model_validate_json(_part(work, load, policy).read_text())
            for policy in setup.policies()
        }
        loads[load] = {
            policy: {
                "kl": result.kl,
                "kl_of_the_worst_request": max(result.kl_by_request.values()),
                **_compared(result, replays[BASE + UNPROTECTED * policy.endswith(UNPROTECTED)]),
                **result.model_dump(exclude={"kl"}),
            }
            for policy, result in replays.items()
        }
    return {
        "setup": setup.model_dump(),
        "policies": setup.policies(),
        "arrivals": setup.arrivals(),
        "reference": {
            **reference.usage.model_dump(),
            "prompt_tokens": [len(answer.prompt) for answer in reference.answers.values()],
            "answer_tokens": [len(answer.tokens) for answer in reference.answers.values()],
        },
        "peak_need_of_full": {
            load: peak_need(reference, arrivals, setup.concurrency, setup.block_size)
            for load, arrivals in setup.arrivals().items()
        },
        "loads": loads,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }


def _compared(result: Replay, base: Replay) -> dict[str, Any]:
    """The ratio of the means over requests, and its 90% interval."""
    ours, theirs = result.kl_by_request, base.kl_by_request
    return {
        "kl_ratio": fmean(ours.values()) / fmean(theirs.values()),
        "kl_ratio_90": ratio_interval(ours, theirs),
    }


def read_prompts(file: Path, count: int, model: Path) -> dict[str, list[int]]:
    """The first questions of a JSONL file (fields ``id`` and ``question``), as token ids.

    Raises:
        ValueError: the file holds fewer than ``count``.
    """
    from transformers import AutoTokenizer

    lines = file.read_text().splitlines()[:count]
    if len(lines) < count:
        raise ValueError(f"{file} has {len(lines)} prompts, but {count} requests are asked for")
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in lines]
    return {
        row["id"]: tokenizer.apply_chat_template(
            [{"role": "user", "content": row["question"]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for row in rows
    }


def _run_reference(setup: Setup, model: Path, prompts: Mapping[str, list[int]], file: Path) -> None:
    longest = max(map(len, prompts.values())) + setup.new_tokens
    pages = setup.concurrency * -(-longest // setup.block_size)
    engine = _engine(setup, model, {"policy": "full"}, longest, pages)
    file.write_text(generate(engine, prompts, setup.new_tokens, setup.top).model_dump_json())


def _run_policy(setup: Setup, model: Path, policy: str, loads: list[str], work: Path) -> None:
    reference = Reference.model_validate_json((work / "reference.json").read_text())
    answers = reference.answers.values()
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in answers)
    engine = _engine(setup, model, setup.policies()[policy], longest, setup.pool_pages)
    for load in loads:
        result = replay(engine, reference, setup.arrivals()[load])
        _part(work, load, policy).write_text(result.model_dump_json())
        typer.echo(f"{load}, {policy}: KL {result.kl:.4f}", err=True)


def _in_own_process(run: Callable[..., None], *args: Any) -> None:
    """None inherits another's memory or engine."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(run, *args).result()


def _part(work: Path, load: str, policy: str) -> Path:
    return work / f"{load}-{policy.replace(', ', '-').replace(' ', '-')}.json"


def _engine(
    setup: Setup, model: Path, settings: Mapping[str, Any], longest: int, pages: int
) -> Any:
    """An engine with a pool of ``pages``, for requests of at most ``longest`` tokens."""
    # Only now: vLLM reads it when it is imported.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    from growpage import engine_kwargs
    from growpage.bench.teacher import TEACHER

    return LLM(
        str(model),
        enforce_eager=True,
        async_scheduling=False,
        enable_prefix_caching=False,
        block_size=setup.block_size,
        max_num_seqs=setup.concurrency,
        max_model_len=-(-longest // setup.block_size) * setup.block_size,
        kv_cache_memory_bytes=(pages + 1) * page_bytes(model, setup.block_size),  # the null block
        seed=setup.seed,
        logits_processors=[TEACHER],
        **engine_kwargs(**settings),
    ).llm_engine


def main(
    prompts: Annotated[Path, typer.Argument(help="JSONL with fields id and question.")],
    work: Annotated[Path, typer.Option(help="Folder for the results of parts.")],
    out: Annotated[Path, typer.Option(help="Where the result goes, as JSON.")],
    model: Annotated[Path | None, typer.Option(help="A model's folder; default: ours.")] = None,
    requests: int = 16,
    new_tokens: int = 200,
    concurrency: int = 8,
    pool_pages: int = 40,
    mean_gap: float = 25,
    top: int = 20,
    seed: int = 0,
) -> None:
    """Measure what each policy's evictions cost, in the KL of forced replays."""
    if model is None:
        from growpage.models import smollm2

        model = smollm2.ensure()
    setup = Setup(
        model=model.name,
        prompts=prompts.name,
        requests=requests,
        new_tokens=new_tokens,
        concurrency=concurrency,
        pool_pages=pool_pages,
        mean_gap=mean_gap,
        top=top,
        seed=seed,
    )
    measure(setup, model, read_prompts(prompts, requests, model), work)
    out.write_text(json.dumps(report(setup, work), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
