"""``growpage bench throughput`` on real engines of a tiny model."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from growpage.bench.contenders import Contender
from growpage.bench.server import PLAIN_SERVE, serve
from growpage.bench.throughput import bench_serve
from growpage.bench.throughput.engines import server_flags
from growpage.bench.throughput.load import LoadRequest, OpenLoop
from growpage.bench.throughput.protocol import EngineSpec
from growpage.cli.app import app

pytestmark = pytest.mark.engine


def test_in_process(tmp_path: Path, tiny_worded_model: Path) -> None:
    out = tmp_path / "out"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "growpage", "bench", "throughput"),
            *("plain", "tight=fixed:budget=96", "--model", str(tiny_worded_model)),
            *("--out", str(out), "--clients", "4", "--requests", "8", "--rounds", "2"),
            *("--pool", "50%", "--prompt-tokens", "20-60", "--output-tokens", "100-160"),
            *("--dtype", "float32"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ratio to plain" in result.stdout
    report = json.loads((out / "throughput.json").read_text())
    asked = report["workload"]["output_tokens"]["sum"]
    assert report["engine"]["dtype"] == "float32"
    (setting,) = report["settings"]
    for figures in setting["contenders"].values():
        assert figures["failed"] == 0
        assert len(figures["output_tokens_per_s_by_round"]) == 2
        assert figures["output_tokens_per_s"] > 0
        assert set(figures["latency_ms"]) == {"ttft", "tpot", "itl", "e2el"}
        assert figures["peak_resident"] <= 4
    plain, fixed = setting["contenders"]["plain"], setting["contenders"]["tight"]
    assert plain["ratio"] is None
    assert fixed["ratio"]["low"] <= fixed["ratio"]["value"] <= fixed["ratio"]["high"]
    assert plain["preemptions"] > 0
    assert plain["recomputed_tokens"] > 0
    assert plain["compressions"] is None
    assert plain["peak_pool_use"] == 1
    assert fixed["preemptions"] == 0
    assert fixed["compressions"] > 0
    assert fixed["peak_pages"] < plain["peak_pages"]
    assert fixed["compact_share"] > 0

    runs = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert [run["contender"] for run in runs] == ["plain", "tight", "tight", "plain"]
    for run in runs:
        traces = run["measurement"]["traces"]
        assert sum(tokens for trace in traces for _, tokens in trace["events"]) == asked
    rows = [json.loads(line) for line in (out / bench_serve.DATASET).read_text().splitlines()]
    assert sum(row["output_tokens"] for row in rows) == asked


def test_a_running_server_and_what_vllms_own_benchmark_says(
    tmp_path: Path, tiny_worded_model: Path
) -> None:
    contender = Contender(name="plain", settings=None)
    lengths = LoadRequest(id="", prompt="", prompt_token_ids=[0] * 60, output_tokens=100)
    spec = EngineSpec(
        contender=contender,
        model=str(tiny_worded_model),
        requests=[lengths],
        pool_pages=12,
        block_size=32,
        max_num_seqs=4,
        dtype="float32",
    )
    out = tmp_path / "out"
    with serve(server_flags(spec), tmp_path / "log", command=PLAIN_SERVE) as server:
        result = CliRunner().invoke(
            app,
            [
                *("bench", "throughput", "--url", server.address, "--out", str(out)),
                *("--request-rate", "8", "--requests", "12", "--rounds", "1"),
                *("--tokenizer", str(tiny_worded_model), "--seed", "5"),
                *("--prompt-tokens", "20-60", "--output-tokens", "100"),
            ],
        )
        assert result.exit_code == 0, result.output
        command = shlex.split((out / bench_serve.SCRIPT).read_text().splitlines()[-1])
        flags = command[command.index("$server") + 1 :]
        given = ["--result-dir", str(out), "--result-filename", "theirs.json"]
        given += ["--dataset-path", str(out / bench_serve.DATASET)]
        bench_serve.main(["--base-url", server.address, *flags, *given])
    report = json.loads((out / "throughput.json").read_text())
    theirs = json.loads((out / "theirs.json").read_text())
    ours = report["settings"][0]["contenders"]["server"]
    assert report["settings"][0]["pool_pages"] == 12
    assert ours["preemptions"] is not None
    assert 0 < ours["peak_pool_use"] <= 1
    assert theirs["completed"] == 12
    assert theirs["total_output_tokens"] == 12 * 100 == report["workload"]["output_tokens"]["sum"]
    assert theirs["total_input_tokens"] == report["workload"]["prompt_tokens"]["sum"]
    # By their definitions: all answers have 100 tokens.
    means = {metric: each["mean"] for metric, each in ours["latency_ms"].items()}
    assert means["e2el"] == pytest.approx(means["ttft"] + 99 * means["tpot"], rel=1e-3)
    assert means["itl"] > means["tpot"] * (1 - 1e-3)  # an event may bring several tokens
    assert theirs["mean_e2el_ms"] == pytest.approx(
        theirs["mean_ttft_ms"] + 99 * theirs["mean_tpot_ms"], rel=1e-3
    )


@pytest.mark.parametrize("burstiness", [0.5, 1.0])
def test_arrivals_are_those_of_vllm_bench_serve(
    burstiness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.benchmarks import serve

    clock = 1000.0

    async def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    monkeypatch.setattr(serve.asyncio, "sleep", sleep)
    monkeypatch.setattr(serve.time, "time", lambda: clock)

    async def times() -> list[float]:
        np.random.seed(11)  # as its main() does with --seed
        sent = serve.get_request(list(range(40)), 4.0, burstiness)
        return [clock - 1000 async for _ in sent]

    theirs = asyncio.run(times())
    ours = OpenLoop(rate=4, burstiness=burstiness, seed=11).arrivals(40)
    assert ours == pytest.approx(theirs, abs=1e-6)
