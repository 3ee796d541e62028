"""Runs one policy in this process: ``python -m growpage.bench.run_policy < spec.json``.

Each policy gets a process of its own, so that none inherits another's memory or page pool. The
engine is in-process too, so its scheduler can be watched. Events go to standard output
(:mod:`growpage.bench.results`); everything vLLM prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TextIO

from growpage.bench.recorder import Recorder, free_pages, pool_size
from growpage.bench.results import Event, Failed, Finished, Progress, RunResult, RunSpec, Started
from growpage.bench.workload import DemoRequest

PROGRESS_EVERY_S = 0.25
"""Seconds between two progress events."""

WARM_UP_NEW_TOKENS = 4

COUNTERS = ("compressions", "growths", "growths_refused", "evicted_tokens")
"""What only the plugin's ledger knows; zero without the plugin."""

Emit = Callable[[Event], None]


def run(spec: RunSpec, emit: Emit) -> RunResult:
    """Start an engine, warm it up, serve the workload, measure.

    Raises:
        RuntimeError: the engine's pool has not the size that was asked for.
    """
    started = perf_counter()
    engine = _start_engine(spec)
    scheduler = engine.engine_core.engine_core.scheduler
    if pool_size(scheduler) != spec.pool_pages:
        raise RuntimeError(
            f"the pool should have {spec.pool_pages} pages, vLLM made {pool_size(scheduler)}"
        )
    _warm_up(engine, spec.requests)
    start_s = perf_counter() - started
    emit(Started(engine_start_s=start_s))

    free_before = free_pages(scheduler)
    counted_before = _counters(scheduler)
    recorder = Recorder(scheduler, names=_submit(engine, spec.requests))
    recorder.attach()
    begin = perf_counter()
    outputs = _drive(engine, emit)
    wall_s = perf_counter() - begin
    recorder.detach()
    settle(engine)

    output_tokens = sum(map(len, outputs.values()))
    counted = _counters(scheduler)
    return RunResult(
        policy=spec.policy,
        tokens_per_s=output_tokens / wall_s,
        output_tokens=output_tokens,
        wall_s=wall_s,
        engine_start_s=start_s,
        steps=recorder.steps,
        preemptions=len(recorder.preempted),
        recomputed_tokens=recorder.recomputed_tokens,
        mean_pages=recorder.mean_pages,
        peak_pages=recorder.peak_pages,
        mean_resident=recorder.mean_resident,
        peak_resident=recorder.peak_resident,
        pages_leaked=free_before - free_pages(scheduler),
        pool_pages=spec.pool_pages,
        outputs=outputs,
        timeline=recorder.timeline(),
        preempted=recorder.preempted,
        **{name: counted[name] - counted_before[name] for name in COUNTERS},
    )


def _start_engine(spec: RunSpec) -> Any:
    # Only now: vLLM reads these when it is imported.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM

    from growpage import engine_kwargs

    longest = max(request.max_tokens for request in spec.requests)
    return LLM(
        spec.model,
        dtype=spec.dtype,
        enforce_eager=True,
        block_size=spec.block_size,
        max_num_seqs=len(spec.requests),
        # Whole pages, so that the longest request fits and vLLM's start-up check asks no more.
        max_model_len=-(-longest // spec.block_size) * spec.block_size,
        kv_cache_memory_bytes=(spec.pool_pages + 1) * spec.page_bytes,  # and the null block
        enable_prefix_caching=spec.prefix_caching,
        seed=spec.seed,
        **({} if spec.settings is None else engine_kwargs(**spec.settings)),
    ).llm_engine


def _submit(
    engine: Any, requests: Sequence[DemoRequest], max_new_tokens: int | None = None
) -> dict[str, str]:
    """Queue all requests, greedy; their names by the ids that vLLM gives them."""
    from vllm import SamplingParams

    return {
        engine.add_request(
            request.id,
            {"prompt_token_ids": request.prompt_token_ids},
            SamplingParams(temperature=0, max_tokens=max_new_tokens or request.max_new_tokens),
        ): request.id
        for request in requests
    }


def _drive(engine: Any, emit: Emit) -> dict[str, list[int]]:
    """Step until every request is done; the generated token ids by name."""
    outputs: dict[str, list[int]] = {}
    growing: dict[str, int] = {}
    reported = perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens = output.outputs[0].token_ids
            growing[output.request_id] = len(tokens)
            if output.finished:
                outputs[output.request_id] = list(tokens)
        if perf_counter() - reported >= PROGRESS_EVERY_S:
            reported = perf_counter()
            emit(Progress(finished=len(outputs), tokens=sum(growing.values())))
    return outputs


def settle(engine: Any) -> None:
    """Let the scheduler clear away the requests that finished in the last step."""
    core = engine.engine_core
    while core.engine_core.scheduler.has_requests():
        core.get_output()


def _warm_up(engine: Any, requests: Sequence[DemoRequest]) -> None:
    """A few tokens for every prompt, and no trace of them in the prefix cache."""
    _submit(engine, requests, max_new_tokens=WARM_UP_NEW_TOKENS)
    while engine.has_unfinished_requests():
        engine.step()
    settle(engine)
    engine.reset_prefix_cache()


def _counters(scheduler: Any) -> dict[str, int]:
    ledger = getattr(scheduler, "ledger", None)
    return {name: int(getattr(ledger, name, 0)) for name in COUNTERS}


def take_stdout() -> TextIO:
    """Standard output for events alone; what else is printed goes to standard error."""
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return events


def main() -> int:
    """Read a spec from standard input, write events to standard output."""
    events = take_stdout()

    def emit(event: Event) -> None:
        # When the parent is gone this raises, which ends the run: no process is left behind.
        events.write(event.model_dump_json() + "\n")

    try:
        result = run(RunSpec.model_validate_json(sys.stdin.read()), emit)
    except BrokenPipeError:
        return 1
    except Exception as error:
        emit(Failed(message=f"{type(error).__name__}: {error}"))
        raise
    emit(Finished(result=result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
