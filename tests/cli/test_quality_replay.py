"""``growpage bench quality replay`` from questions to a report, on a tiny random model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from growpage.budget.errors import ConfigError
from growpage.cli.app import app

pytestmark = pytest.mark.engine


def replay(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "growpage", "bench", "quality", "replay", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def replay_here(*arguments: str) -> Result:
    """Without a process of its own, where no engine is to be started."""
    return CliRunner().invoke(app, ["bench", "quality", "replay", *arguments])


def test_from_questions_to_a_report(
    tiny_worded_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "questions.jsonl").write_text(
        "".join(
            json.dumps({"question": f"What is {n} and {n}?", "family": "even" if n % 2 else "odd"})
            + "\n"
            for n in range(4)
        )
    )
    common = (
        *(
            "questions.jsonl",
            "--model",
            str(tiny_worded_model),
            "--requests",
            "4",
            "--new-tokens",
            "70",
        ),
        *("--dtype", "float32", "--contender", "fixed:budget=64", "--pool", "100%"),
    )
    first = replay(tmp_path, *common, "--load", "saturated")
    assert first.returncode == 0, first.stderr
    assert "KL exact, over the whole vocabulary of 49152 tokens" in first.stdout
    assert "saturated load, even" in first.stdout
    out = tmp_path / "replay-out"
    assert (out / "replay.png").stat().st_size > 1000
    report = json.loads((out / "replay.json").read_text())
    assert report["command"].startswith("growpage bench quality replay questions.jsonl")
    row = report["loads"]["saturated"]["fixed:budget=64"]
    assert row["kl"]["value"] > 0.001
    assert row["pool"]["compressions"] > 0
    assert row["page_bytes"] == 2 * 2 * 32 * 2 * 64 * 4
    assert set(row["families"]) == {"even", "odd"}

    log = (out / "engine.log").stat().st_size
    monkeypatch.chdir(tmp_path)
    again = replay_here(*common, "--load", "saturated")
    assert again.stdout == first.stdout
    assert (out / "engine.log").stat().st_size == log, "nothing was measured again"

    written = (out / "0.logits").stat().st_size
    assert written == 70 * 49152 * 4, "in float32, as the model is served"

    other = replay_here(*common, "--temperature", "1")
    assert isinstance(other.exception, ConfigError)
    assert "whose temperature is 0.0 and not 1.0; give another work folder" in str(other.exception)
    renamed = replay_here(*common[:-4], "--contender", "fixed:budget=64", "--pool", "20")
    assert isinstance(renamed.exception, ConfigError)
    assert "give this one another name" in str(renamed.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "cannot read the questions in none.jsonl"),
        (["one.jsonl"], "one.jsonl has 1 questions, but 16 requests are asked for"),
        (["bad.jsonl", "--requests", "2"], "bad.jsonl, line 2 is no JSON object: 'nonsense'"),
        (["one.jsonl", "--pool", "much"], "--pool is 'much'"),
        (["one.jsonl", "--exact-bytes", "lots"], "--exact-bytes is 'lots'"),
        (["one.jsonl", "--contender", "fixed:budget=x"], "budget is 'x'"),
        (["two.jsonl", "--requests", "2", "--base", "x"], "--base is 'x', but must be one of full"),
        (["two.jsonl", "--requests", "2", "--contender", "fixed:budget=32"], "budget is 32"),
        (["two.jsonl", "--requests", "2", "--new-tokens", "9000"], "do not fit into the model's"),
        (["two.jsonl", "--requests", "2", "--model", "."], "is not a model's folder"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_started(
    smollm2_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = json.dumps({"question": "Why?"}) + "\n"
    (tmp_path / "one.jsonl").write_text(line)
    (tmp_path / "two.jsonl").write_text(line + line)
    (tmp_path / "bad.jsonl").write_text(line + "nonsense\n")
    result = replay_here(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert len(str(result.exception).splitlines()) == 1
    assert not list(tmp_path.glob("replay-out/*"))
