"""``growpage bench analyse`` from questions to reports, on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from growpage.bench.analyses.sufficient import rungs_of
from growpage.bench.forced_replay import Reference, peak_need
from growpage.bench.subject import Subject
from growpage.budget.errors import ConfigError
from growpage.cli.app import app
from tests.bench.analyses import made_up

REQUESTS, NEW_TOKENS = 4, 110


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text(
        "".join(
            json.dumps({"question": f"What is {n} and {n}?", "family": "even" if n % 2 else "odd"})
            + "\n"
            for n in range(REQUESTS)
        )
    )
    return file


def analyse(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "analyse", *arguments])


@pytest.mark.engine
def test_from_questions_to_what_was_measured(
    tiny_worded_model: Path, questions: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    common = (
        *(str(questions), "--model", str(tiny_worded_model), "--work", str(work)),
        *("--requests", str(REQUESTS), "--new-tokens", str(NEW_TOKENS), "--dtype", "float32"),
    )

    def run(name: str, *arguments: str) -> dict[str, Any]:
        result = analyse(name, *common, *arguments)
        assert result.exit_code == 0, result.output
        assert (work / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        report: dict[str, Any] = json.loads((work / f"{name}.json").read_text())
        assert {"command", "model", "seed", "date", "machine", "versions"} <= set(report)
        return report

    demand = run("demand", "--mass", "0.9")["masses"]["0.9"]
    for request in demand["requests"].values():
        # Once a page, from the second on: the prompt, the recent tokens and a step are sure.
        positions = [point["position"] for point in request["points"]]
        assert positions == list(range(positions[0], positions[-1] + 1, 32))
        assert all(position % 32 == 31 for position in positions)
        last = request["prompt_tokens"] + request["answer_tokens"]
        assert 0 <= last - positions[-1] <= 33
        for point in request["points"]:
            assert 1 <= point["short"] <= point["position"]
            assert point["delta"] == pytest.approx(point["short"] - point["long"])
            assert point["entropy"] > 0
            assert 0 < point["loss_1"] < 1

    log = work / "engine.log"
    served = log.stat().st_size
    signal = run("signal", "--mass", "0.9")
    assert log.stat().st_size == served, "what was measured is not measured again"
    assert signal["boundaries"] == demand["measurements"]


def test_what_was_replayed_before_is_analysed_without_an_engine(
    tiny_worded_model: Path, questions: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    subject = Subject.of(
        questions,
        tiny_worded_model,
        work=work,
        requests=REQUESTS,
        new_tokens=NEW_TOKENS,
        temperature=0,
        concurrency=8,
        seed=0,
    )
    keep_replays(subject, {64: [0.01, 0.2, 0.2, 0.2], 96: [0.01, 0.01, 0.2, 0.01]})
    common = (
        *(str(questions), "--model", str(tiny_worded_model), "--work", str(work), "--budget", "96"),
        *("--requests", str(REQUESTS), "--new-tokens", str(NEW_TOKENS), "--budget", "64"),
    )
    assert (result := analyse("sufficient", *common)).exit_code == 0, result.output
    sufficient = json.loads((work / "sufficient.json").read_text())
    assert [row["sufficient"] for row in sufficient["requests"].values()] == [64, 96, None, 96]
    assert sufficient["spread"]["all"]["none_suffices"] == 1
    assert ">96" in result.stdout

    rung = "fixed:budget=96,pool=100%"
    assert (result := analyse("adaptive", *common, "--contender", rung)).exit_code == 0
    adaptive = json.loads((work / "adaptive.json").read_text())
    assert adaptive["contenders"][rung]["mean"] == 96
    assert adaptive["contenders"][rung]["correlation"]["peak"]["with_need"] is None
    assert "does not vary" in result.stdout
    assert not (work / "engine.log").exists()


def keep_replays(subject: Subject, kl: dict[int, list[float]]) -> None:
    """What a measurement leaves in its work folder, for budgets and the KL of each request."""
    answers = {
        name: made_up.answer(len(prompt) + NEW_TOKENS).model_copy(update={"prompt": prompt})
        for name, prompt in subject.prompts.items()
    }
    reference = Reference(answers=answers, usage=made_up.USAGE)
    need = peak_need(reference, [0] * REQUESTS, subject.setup.concurrency, 32)
    files: dict[str, Any] = {
        "setup": subject.setup.model_dump(),
        "reference": {
            "reference": reference.model_dump(),
            "provenance": made_up.PROVENANCE.model_dump(),
        },
    }
    for rung, values in zip(rungs_of(kl), kl.values(), strict=True):
        part = made_up.part(
            rung, dict(zip(answers, values, strict=True)), dict.fromkeys(answers, 3.0)
        )
        files[f"saturated-{rung.slug}"] = part.model_copy(update={"pool_pages": need}).model_dump()
    subject.work.mkdir()
    for name, content in files.items():
        (subject.work / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demand", "--mass", "1.5"], "mass is '1.5'"),
        (["signal", "--setting", "policy=full"], "'policy=full' does not change how demand"),
        (["signal", "--setting", "equal_norm=perhaps"], "equal_norm is 'perhaps'"),
        (["sufficient", "--budget", "20"], "budget is 20, but must be at least 64"),
        (["sufficient", "--new-tokens", "2"], "ask for more --new-tokens"),
        (["adaptive", "--pool", "much"], "--pool is 'much'"),
        (["adaptive", "--contender", "none"], "policy is 'none'"),
    ],
)
def test_what_cannot_run_is_refused_before_an_engine_starts(
    tiny_worded_model: Path, questions: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    name, *options = arguments
    common = (
        "--model",
        str(tiny_worded_model),
        "--work",
        str(tmp_path / "work"),
        "--requests",
        "4",
    )
    result = analyse(name, str(questions), *common, *options)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert not (tmp_path / "work" / "engine.log").exists()
