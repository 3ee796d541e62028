"""Answers of real engines, and a stopped run that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from growpage.bench.answers import (
    FULL,
    Question,
    Response,
    Setup,
    answer_all,
    read_responses,
    with_full,
)
from growpage.bench.contenders import Contender
from growpage.bench.pool import page_bytes
from growpage.budget.errors import ConfigError

RESPONSE = Response(
    problem="p",
    sample=0,
    text="a",
    tokens=[1],
    prompt_tokens=40,
    finished=True,
    steps=1,
    page_steps=2,
    peak_pages=2,
    pool_peak=4,
    preemptions=0,
)
QUESTIONS = [Question("p", [1] * 40, 60)]
SETUP = Setup(
    model="m", problems="d", samples=1, temperature=0, max_tokens=60, concurrency=2, pool="50%"
)


def test_full_kv_comes_first_and_is_added() -> None:
    fixed = Contender.of("fixed:budget=64")
    eight_bit = Contender.of("full 8-bit=full:kv_cache_dtype=fp8")
    assert with_full([fixed]) == [FULL, fixed]
    assert [each.name for each in with_full([eight_bit, fixed])] == [
        "full",
        "full 8-bit",
        "fixed:budget=64",
    ]
    assert with_full([fixed, Contender.of("roomy=full")])[0].name == "roomy"
    with pytest.raises(ConfigError, match="call that contender otherwise"):
        with_full([Contender.of("full=fixed:budget=64")])


def test_a_line_that_was_cut_off_is_not_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    assert read_responses(file) == []
    whole = RESPONSE.model_dump_json()
    file.write_text(f"{whole}\n{whole[:30]}")
    assert read_responses(file) == [RESPONSE]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full.answers.jsonl").write_text(RESPONSE.model_dump_json() + "\n")
    arguments = (Path("m"), [FULL], QUESTIONS, tmp_path, print)
    assert answer_all(SETUP, *arguments) == {"full": [RESPONSE]}
    with pytest.raises(ConfigError, match="whose seed is 0 and not 1"):
        answer_all(SETUP.model_copy(update={"seed": 1}), *arguments)


def test_a_pool_too_small_for_the_longest_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full.answers.jsonl").write_text(RESPONSE.model_dump_json() + "\n")
    fixed = Contender.of("fixed:budget=64")
    # Half of the four pages that full KV took; the longest request may take four itself.
    with pytest.raises(ConfigError, match=r"a pool of 2 pages cannot hold .* take 4"):
        answer_all(SETUP, Path("m"), [FULL, fixed], QUESTIONS, tmp_path, print)


def test_answers_of_two_contenders_one_of_which_goes_on(smollm2_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    work = tmp_path / "result.work"
    work.mkdir()
    fixed_file = work / "fixed_budget=64.answers.jsonl"
    kept = RESPONSE.model_copy(update={"problem": "recall-0", "text": "given before"})
    fixed_file.write_text(f"{kept.model_dump_json()}\n{kept.model_dump_json()[:50]}")
    # Its own process, as every contender's engine has one: nothing of pytest's is inherited.
    subprocess.run(
        [
            *(sys.executable, "-m", "growpage", "bench", "quality", "answers", "recall"),
            *("copying", "--contender", "fixed:budget=64", "--count", "3", "--concurrency", "6"),
            *("--out", str(tmp_path / "result.json"), "--model", str(smollm2_path)),
            *("--dtype", "float32"),
        ],
        check=True,
        timeout=500,
        env=os.environ,
        capture_output=True,
    )
    given = read_responses(fixed_file)
    assert given[0] == kept
    assert sorted((each.problem, each.sample) for each in given) == [
        (f"{family}-{index}", 0) for family in ("copying", "recall") for index in range(3)
    ]
    result = json.loads((tmp_path / "result.json").read_text())
    full, fixed = (result["figures"]["all"][name] for name in ("full", "fixed:budget=64"))
    assert full["problems"] == fixed["problems"] == 6
    assert 0 < full["score"]["value"] <= 1
    assert fixed["mean_pages"] < 0.7 * full["mean_pages"]
    assert result["setup"]["dtype"] == "float32"
    assert fixed["mean_bytes"] == fixed["mean_pages"] * page_bytes(smollm2_path, dtype="float32")
    assert set(result["figures"]) == {"all", "recall", "copying"}
    assert result["scores"]["fixed:budget=64"]["recall-0"] == 0
    assert (tmp_path / "result.svg").stat().st_size
