"""``growpage demo``: the same requests and the same pool under one policy after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from growpage.bench import report, results
from growpage.bench.comparison import Comparison, Setting
from growpage.bench.launch import RunError, launch
from growpage.bench.machine import fast_dtype
from growpage.bench.pool import BLOCK_SIZE, POOL_FORMULA, full_pages, page_bytes, pool_pages
from growpage.bench.results import Event, RunResult, RunSpec
from growpage.bench.workload import (
    MAX_NEW_TOKENS,
    SIZE,
    DemoRequest,
    demo_workload,
    load_tokenizer,
)

SEED = 0

PREFIX_CACHING = True
"""vLLM's default."""


@dataclass(frozen=True)
class DemoPolicy:
    """How the demo runs a policy."""

    settings: dict[str, Any] | None
    """Fields of the budget's configuration; none for vLLM without the plugin."""
    roomy: bool = False
    """Whether its pool holds every request at full length instead of about a fifth of them."""


POLICIES = {
    "full": DemoPolicy({"policy": "full"}),
    "fixed": DemoPolicy({"policy": "fixed", "budget": 128}),
    "growpage": DemoPolicy({"policy": "growpage", "min_pages": 3, "max_pages": 5}),
    "every": DemoPolicy({"policy": "every", "min_pages": 3, "max_pages": 5}),
    "elastic": DemoPolicy({"policy": "elastic", "min_pages": 3}),
    "thin": DemoPolicy({"policy": "elastic", "min_pages": 3, "floor": "promised"}),
    "plain": DemoPolicy(None),
    "roomy": DemoPolicy(None, roomy=True),
}
"""Every policy the demo knows. ``plain`` and ``roomy`` are vLLM without the plugin: the first in
the same pool, the second in one for everybody, which shows the most that more memory could bring.
``elastic`` keeps working sets; ``thin`` is the same rule where a request may be asked for all but
the capacity that it was admitted with.
"""

DEFAULT_POLICIES = ("full", "fixed", "growpage", "elastic")


class DemoError(RuntimeError):
    """The demo cannot be run; the message is one line that says why."""


def run_demo(
    out: Path,
    model: Path,
    policies: Sequence[str] = DEFAULT_POLICIES,
    *,
    size: int = SIZE,
    max_new_tokens: int = MAX_NEW_TOKENS,
    console: Console | None = None,
) -> int:
    """Run the policies, show the table, write the report.

    Args:
        out: a folder for the report, each run's whole result and vLLM's logs, made if need be.
        model: a Hugging Face model's folder.
        policies: names from :data:`POLICIES`, run in this order.
        size: how many of the workload's requests.
        max_new_tokens: tokens an answer may have.
        console: where progress and the table go; standard output by default.

    Returns:
        An exit status: 0, or 1 when a policy did not give all its pages back.

    Raises:
        DemoError: an argument cannot be used, or a run failed.
    """
    console = console or Console()
    _check(policies)
    try:
        dtype = fast_dtype()
        page_size = page_bytes(model, dtype=dtype)
        requests = demo_workload(load_tokenizer(model), size, max_new_tokens)
        out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        raise DemoError(str(error)) from error

    setting = Setting(
        model=model.name,
        families={request.id: request.family for request in requests},
        max_new_tokens=max_new_tokens,
        pool_pages=pool_pages(requests),
        block_size=BLOCK_SIZE,
        dtype=dtype,
        page_bytes=page_size,
        pool_formula=POOL_FORMULA,
        prefix_caching=PREFIX_CACHING,
        seed=SEED,
        settings={name: POLICIES[name].settings for name in policies},
    )
    console.print(
        f"{size} requests, up to {max_new_tokens} new tokens each, on {setting.model}; "
        f"a pool of {setting.pool_pages} pages of {BLOCK_SIZE} tokens.",
        highlight=False,
    )
    found = _run_all([_spec(name, model, requests, setting) for name in policies], out, console)

    comparison = Comparison(setting, found)
    console.print(report.table(comparison))
    for file in report.write(comparison, out):
        console.print(f"wrote {file}", highlight=False, soft_wrap=True)
    return _verdict(found, console)


def _check(policies: Sequence[str]) -> None:
    for name in policies:
        if name not in POLICIES:
            raise DemoError(f"unknown policy {name!r}: the demo has {', '.join(POLICIES)}")
    if not policies or len(set(policies)) < len(policies):
        raise DemoError("name at least one policy, and each only once")


def _spec(name: str, model: Path, requests: list[DemoRequest], setting: Setting) -> RunSpec:
    policy = POLICIES[name]
    return RunSpec(
        policy=name,
        settings=policy.settings,
        model=str(model),
        requests=requests,
        pool_pages=sum(map(full_pages, requests)) if policy.roomy else setting.pool_pages,
        dtype=setting.dtype,
        page_bytes=setting.page_bytes,
        block_size=setting.block_size,
        prefix_caching=setting.prefix_caching,
        seed=setting.seed,
    )


def _run_all(specs: Sequence[RunSpec], out: Path, console: Console) -> list[RunResult]:
    """One after the other, each with its bar; a line each where bars cannot be drawn."""
    columns = (
        TextColumn("[bold]{task.description:>8}"),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[status]:<44}"),
        TimeElapsedColumn(),
    )
    found = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = [
            progress.add_task(spec.policy, total=len(spec.requests), start=False, status="waiting")
            for spec in specs
        ]
        for task, spec in zip(tasks, specs, strict=True):
            progress.start_task(task)
            progress.update(task, total=None, status="starting the engine")
            try:
                result = launch(spec, out / f"{spec.policy}.log", _follow(progress, task, spec))
            except RunError as error:
                raise DemoError(str(error)) from error
            progress.stop_task(task)
            if not console.is_terminal:
                console.print(f"{spec.policy}: {_outcome(result)}", highlight=False)
            (out / f"{spec.policy}.json").write_text(result.model_dump_json())
            found.append(result)
    return found


def _follow(progress: Progress, task: TaskID, spec: RunSpec) -> Callable[[Event], None]:
    """What moves a run's bar."""
    size = len(spec.requests)

    def show(event: Event) -> None:
        match event:
            case results.Started():
                progress.update(task, total=size, status=f"0/{size} requests")
            case results.Progress():
                status = f"{event.finished}/{size} requests, {event.tokens:,} tokens"
                progress.update(task, completed=event.finished, status=status)
            case results.Finished():
                progress.update(task, completed=size, status=_outcome(event.result))

    return show


def _outcome(result: RunResult) -> str:
    return (
        f"{len(result.outputs)} requests, {result.output_tokens:,} tokens, "
        f"{result.tokens_per_s:.0f} tokens/s"
    )


def _verdict(found: Sequence[RunResult], console: Console) -> int:
    leaks = {result.policy: result.pages_leaked for result in found if result.pages_leaked}
    for policy, pages in leaks.items():
        console.print(f"[red]{policy} did not give {pages} pages back to the pool.")
    return 1 if leaks else 0
