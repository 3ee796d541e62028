"""What is taken from an engine: its metrics, its phases, and the protocol with its process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from growpage.bench.contenders import Contender
from growpage.bench.launch import RunError
from growpage.bench.results import Progress
from growpage.bench.throughput.engine_process import engine_process
from growpage.bench.throughput.exposition import Reading, figures
from growpage.bench.throughput.load import ClosedLoop
from growpage.bench.throughput.phases import PhaseWatch
from growpage.bench.throughput.protocol import (
    EngineFigures,
    EngineSpec,
    Measured,
    Measurement,
    Ready,
)
from growpage.engine.messages import StepAnswer

SPEC = EngineSpec(
    contender=Contender(name="plain", settings=None),
    model="model",
    requests=[],
    pool_pages=1,
    block_size=32,
    max_num_seqs=1,
)


def exposition(
    running: int, usage: float, preempted: int, compact_s: float, compressions: int
) -> str:
    return f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} {usage}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0"}} {preempted}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{engine="0",num_gpu_blocks="101",block_size="32"}} 1
# TYPE growpage_decision_seconds histogram
growpage_decision_seconds_bucket{{engine="0",phase="compact",le="+Inf"}} 9
growpage_decision_seconds_sum{{engine="0",phase="compact"}} {compact_s}
growpage_decision_seconds_count{{engine="0",phase="compact"}} 9
# TYPE growpage_compressions counter
growpage_compressions_total{{engine="0",reason="boundary"}} {compressions}
growpage_compressions_total{{engine="0",reason="pool"}} 1
"""


def test_metrics_before_and_after_a_run() -> None:
    before = Reading.of(exposition(0, 0.0, 5, 1.0, 10))
    after = Reading.of(exposition(0, 0.0, 7, 1.5, 30))
    samples = [
        Reading.of(exposition(running, usage, 6, 1.2, 20))
        for running, usage in ((0, 0.0), (4, 0.6), (6, 1.0))
    ]
    assert after.pool_pages == 100
    assert after.block_size == 32
    found = figures(before, after, samples)
    assert found.model_dump(exclude_unset=True, exclude_none=True) == {
        "preemptions": 2,
        "peak_resident": 6,
        "mean_resident": pytest.approx(10 / 3),
        "mean_pages": pytest.approx(160 / 10),
        "mean_pool_use": pytest.approx(1.6 / 3),
        "peak_pool_use": 1.0,
        "compressions": 20,
        "seconds": {"compact": 0.5},
    }


def test_a_server_that_says_nothing_leaves_everything_open() -> None:
    assert figures(Reading.of(""), Reading.of(""), []) == EngineFigures()


class Enforcement:
    def decide(self, running: str) -> list[str]:
        return ["plan", running]


class Scheduler:
    def __init__(self, enforcement: Enforcement | None = None) -> None:
        if enforcement is not None:
            self.enforcement = enforcement

    def update_from_output(self, scheduled: object, output: object) -> str:
        return "outputs"


def test_phases_are_added_up_while_they_are_watched() -> None:
    ticks = iter([10.0, 10.25])
    scheduler = Scheduler(Enforcement())
    watch = PhaseWatch(scheduler, clock=lambda: next(ticks))
    watch.attach()
    assert scheduler.enforcement.decide("running") == ["plan", "running"]
    answer = StepAnswer("Runner", 2, seconds={"compact": [0.5, 0.25], "capture": [0.125]})
    for output in (SimpleNamespace(growpage=answer), SimpleNamespace()):
        assert scheduler.update_from_output(None, output) == "outputs"
    watch.detach()
    scheduler.enforcement.decide("unseen")
    scheduler.update_from_output(None, SimpleNamespace(growpage=answer))
    assert watch.seconds == {"decide": 0.25, "compact": 0.75, "capture": 0.125}


def test_plain_vllm_has_no_phases() -> None:
    scheduler = Scheduler()
    watch = PhaseWatch(scheduler)
    watch.attach()
    assert scheduler.update_from_output(None, None) == "outputs"
    watch.detach()
    assert watch.seconds == {}


def python(*lines: str) -> tuple[str, ...]:
    return (sys.executable, "-c", "import sys\n" + "\n".join(lines))


def test_an_engine_process_serves_one_load_after_the_other(tmp_path: Path) -> None:
    measured = Measured(measurement=Measurement(wall_s=2, traces=[], engine=EngineFigures()))
    progress = Progress(finished=1, tokens=2)
    command = python(
        "sys.stdin.readline()",
        f"print({Ready(start_s=1).model_dump_json()!r}, flush=True)",
        "for line in sys.stdin:",
        "    print(line.strip(), file=sys.stderr)",
        f"    print({progress.model_dump_json()!r}, flush=True)",
        f"    print({measured.model_dump_json()!r}, flush=True)",
    )
    seen: list[Progress] = []
    with engine_process(SPEC, tmp_path / "log", command) as engine:
        for clients in (1, 2):
            assert engine.serve(ClosedLoop(clients=clients), seen.append) == measured.measurement
    assert seen == [progress, progress]
    assert (tmp_path / "log").read_text().splitlines() == [
        '{"kind":"closed","clients":1}',
        '{"kind":"closed","clients":2}',
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["""print('{"event": "failed", "message": "no memory"}')"""],
            r"plain failed: no memory; vLLM's log is .*log",
        ),
        (["sys.exit(3)"], r"plain ended with status 3; vLLM's log is .*log"),
    ],
)
def test_an_engine_that_does_not_start_is_one_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with (
        pytest.raises(RunError, match=message),
        engine_process(SPEC, tmp_path / "log", python(*lines)),
    ):
        pass
