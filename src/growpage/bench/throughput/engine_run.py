"""One contender's engine, in a process of its own.

``python -m growpage.bench.throughput.engine_run`` waits for loads and serves one after the other.
Between them it blocks, and takes no processor time. Standard output is for events
(:mod:`growpage.bench.throughput.protocol`); everything vLLM prints goes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from growpage.bench.engine import start_engine
from growpage.bench.recorder import Recorder, pool_size
from growpage.bench.results import Failed, Progress
from growpage.bench.run_policy import settle, take_stdout
from growpage.bench.throughput.latency import Trace
from growpage.bench.throughput.load import Load, LoadRequest, Pace
from growpage.bench.throughput.phases import PhaseWatch
from growpage.bench.throughput.protocol import (
    LOAD,
    EngineFigures,
    EngineSpec,
    Event,
    Measured,
    Measurement,
    Ready,
)

PROGRESS_EVERY_S = 0.5
"""Seconds between two progress events."""

WARM_UP_TOKENS = 4

Emit = Callable[[Event], None]


class EngineRun:
    """An engine that serves loads.

    Args:
        spec: what to start.

    Raises:
        RuntimeError: the engine's pool has not the size that was asked for.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._requests = spec.requests
        self._engine = start_engine(
            Path(spec.model),
            spec.contender,
            pool_pages=spec.pool_pages,
            concurrency=spec.max_num_seqs,
            longest=spec.longest,
            block_size=spec.block_size,
            prefix_caching=spec.prefix_caching,
            eager=spec.eager,
            dtype=spec.dtype,
            seed=spec.seed,
        ).llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler

    def warm_up(self) -> None:
        """Serve every prompt with a few tokens of its answer, then the longest request whole.

        What happens the first time only, such as the compilation of a kernel, is over then.
        """
        for request in self._requests:
            self._submit(request, min(WARM_UP_TOKENS, request.output_tokens))
        self._finish()
        longest = max(self._requests, key=lambda request: request.tokens)
        self._submit(longest, longest.output_tokens)
        self._finish()

    def serve(self, load: Load, emit: Emit) -> Measurement:
        """Serve all requests at the load's pace, and watch the engine do it."""
        names: dict[str, str] = {}
        recorder = Recorder(self._scheduler, names)
        phases = PhaseWatch(self._scheduler)
        before = self._counters()
        recorder.attach()
        phases.attach()
        traces, wall_s = self._drive(Pace(load, len(self._requests)), names, emit)
        phases.detach()
        recorder.detach()
        self._come_to_rest()
        counted = {name: value - before[name] for name, value in self._counters().items()}
        pool = pool_size(self._scheduler)
        return Measurement(
            wall_s=wall_s,
            traces=traces,
            engine=EngineFigures(
                steps=recorder.steps,
                preemptions=len(recorder.preempted),
                recomputed_tokens=recorder.recomputed_tokens,
                peak_resident=recorder.peak_resident,
                mean_resident=recorder.mean_resident,
                mean_pages=recorder.mean_pages,
                peak_pages=recorder.peak_pages,
                mean_pool_use=recorder.mean_pages_used / pool,
                peak_pool_use=recorder.peak_pages_used / pool,
                seconds=dict(phases.seconds),
                **counted,
            ),
        )

    def _drive(self, pace: Pace, names: dict[str, str], emit: Emit) -> tuple[list[Trace], float]:
        """Step the engine until every request is answered; their traces and the time it took."""
        sent: dict[str, float] = {}
        events: dict[str, list[tuple[float, int]]] = {each.id: [] for each in self._requests}
        done = tokens = 0
        begin = reported = perf_counter()
        now = 0.0
        while done < len(self._requests):
            now = perf_counter() - begin
            while len(sent) < len(self._requests):
                request = self._requests[len(sent)]
                due = pace.send_at(len(sent), len(sent) - done, now)
                if due > now:
                    break
                sent[request.id] = due
                names[self._submit(request, request.output_tokens)] = request.id
            if len(sent) == done:  # an open loop, between two requests
                time.sleep(due - now)
                continue
            outputs = self._engine.step()
            now = perf_counter() - begin
            for output in outputs:
                new = len(output.outputs[0].token_ids)
                if new:
                    events[output.request_id].append((now, new))
                tokens += new
                done += output.finished
            if begin + now - reported >= PROGRESS_EVERY_S:
                reported = begin + now
                emit(Progress(finished=done, tokens=tokens))
        return [self._trace(each, sent[each.id], events[each.id]) for each in self._requests], now

    @staticmethod
    def _trace(request: LoadRequest, sent_s: float, events: list[tuple[float, int]]) -> Trace:
        return Trace(
            request=request.id,
            prompt_tokens=len(request.prompt_token_ids),
            wanted_tokens=request.output_tokens,
            sent_s=sent_s,
            events=events,
        )

    def _submit(self, request: LoadRequest, tokens: int) -> str:
        """Queue a request, greedy; the id that vLLM gives it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": request.prompt_token_ids}
        return str(self._engine.add_request(request.id, prompt, sampling))

    def _finish(self) -> None:
        """Step until nothing is left to do."""
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._come_to_rest()

    def _come_to_rest(self) -> None:
        """Clear away what finished in the last step, and what the prefix cache remembers."""
        settle(self._engine)
        self._engine.reset_prefix_cache()

    def _counters(self) -> dict[str, int]:
        """What only the plugin's ledger knows; nothing without the plugin."""
        ledger = getattr(self._scheduler, "ledger", None)
        if ledger is None:
            return {}
        return {name: getattr(ledger, name) for name in ("compressions", "evicted_tokens")}


def main(lines: Sequence[str] | None = None) -> int:
    """Read a spec and loads from standard input, write events to standard output."""
    events = take_stdout()

    def emit(event: Event) -> None:
        # When the parent is gone this raises, which ends the run: no process is left behind.
        events.write(event.model_dump_json() + "\n")

    orders = iter(sys.stdin if lines is None else lines)
    try:
        started = perf_counter()
        run = EngineRun(EngineSpec.model_validate_json(next(orders)))
        run.warm_up()
        emit(Ready(start_s=perf_counter() - started))
        for order in orders:
            emit(Measured(measurement=run.serve(LOAD.validate_json(order), emit)))
    except BrokenPipeError:
        return 1
    except Exception as error:
        emit(Failed(message=f"{type(error).__name__}: {error}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
