"""In which order contenders run, and that none is up beside another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from growpage.bench.contenders import Contender
from growpage.bench.throughput.experiment import Engine, Experiment
from growpage.bench.throughput.load import ClosedLoop, LoadRequest, OpenLoop
from growpage.bench.throughput.protocol import Measurement
from tests.bench.throughput.made_up import run_of

LOADS = [ClosedLoop(clients=1), ClosedLoop(clients=2)]


class Recorder:
    """Engines that only say when they are up."""

    def __init__(self) -> None:
        self.up: list[str] = []
        self.most_up = 0
        self.started: list[tuple[str, int]] = []

    @contextmanager
    def start(self, contender: Contender, pool_pages: int) -> Iterator[Engine]:
        self.up.append(contender.name)
        self.started.append((contender.name, pool_pages))
        self.most_up = max(self.most_up, len(self.up))
        yield self
        self.up.remove(contender.name)

    def serve(self, load: ClosedLoop | OpenLoop, on_progress: object) -> Measurement:
        return run_of(self.up[-1], 1.0).measurement


def run(rounds: int, pools: list[str]) -> tuple[Recorder, list[tuple[str, str, int, str]]]:
    names = ("a", "b", "c")
    request = LoadRequest(id="0", prompt="", prompt_token_ids=[0] * 22, output_tokens=10)
    experiment = Experiment(
        contenders=[Contender(name=name, settings=None) for name in names],
        requests=[request],
        loads=LOADS,
        pools=pools,
        rounds=rounds,
        block_size=32,
        max_num_seqs=1,
    )
    recorder, said = Recorder(), list[str]()
    runs = [
        (each.setting.pool, each.contender, each.round, str(each.setting.load))
        for each in experiment.run(recorder.start, said.append)
    ]
    return recorder, runs


def test_each_is_started_alone_for_each_turn_and_serves_all_loads() -> None:
    recorder, runs = run(rounds=3, pools=["4", "8"])
    assert recorder.most_up == 1
    assert not recorder.up
    assert len(recorder.started) == 2 * 3 * 3
    assert len(set(runs)) == len(runs) == 2 * 3 * 3 * len(LOADS)
    assert [each[0] for each in runs] == ["4"] * 18 + ["8"] * 18
    assert [each[2] for each in runs[:18]] == [1] * 6 + [2] * 6 + [3] * 6


def test_another_one_begins_each_round() -> None:
    recorder, _ = run(rounds=4, pools=["4"])
    order = "".join(name for name, _ in recorder.started)
    assert order == "abc" + "bca" + "cab" + "abc"
