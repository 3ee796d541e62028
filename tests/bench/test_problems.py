"""Where problems come from, and what is said where they cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from growpage.bench.problems import MATHS_INSTRUCTION, PUBLIC, ProblemError, read_jsonl
from growpage.bench.sources import read_sources


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [
        {"question": "1 + 1?", "answer": 2},
        {"id": 7, "question": "Copy: a, b", "answer": "a, b", "grading": "list", "family": "own"},
    ]
    made = tmp_path / "mine.jsonl"
    made.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return made


def test_a_file_of_questions_and_answers(file: Path) -> None:
    maths, listed = read_jsonl(file, 2)
    assert (maths.id, maths.answer, maths.family) == ("mine-0", "2", "mine")
    assert maths.question == f"1 + 1?\n{MATHS_INSTRUCTION}"
    assert (listed.id, listed.question, listed.family) == ("7", "Copy: a, b", "own")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 must be an object"),
        ('{"question": "?"}', "line 1: answer: Field required"),
        ('{"question": "?", "answer": "1", "grading": "no"}', "line 1: grading: Input should be"),
        ('{"question": "?", "answer": "1", "extra": 1}', "line 1: extra: Extra inputs"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ProblemError, match=message):
        read_jsonl(file, 1)


def test_too_few(file: Path) -> None:
    with pytest.raises(ProblemError, match="holds 2 problems, and 3 were asked for"):
        read_jsonl(file, 3)


def test_sources_of_several_kinds(file: Path) -> None:
    problems = read_sources([str(file), "recall"], 2, "easy", 0)
    assert [each.id for each in problems] == ["mine-0", "7", "recall-0", "recall-1"]
    with pytest.raises(ProblemError, match="two problems have the id 'mine-0'"):
        read_sources([str(file), str(file)], 2, "easy", 0)
    with pytest.raises(ProblemError, match="'nothing' is neither a file nor one of recall"):
        read_sources(["nothing"], 2, "easy", 0)
    with pytest.raises(ProblemError, match="'hard' is not one of easy, medium"):
        read_sources(["recall"], 2, "hard", 0)


def test_a_public_set_out_of_reach_names_the_way_out() -> None:
    with pytest.raises(ProblemError, match=r"gsm8k .*name a JSONL file"):
        read_sources(["gsm8k"], 2, "easy", 0)


def test_the_answer_of_gsm8k_follows_its_working() -> None:
    row = {"answer": "She has 2 * 4 = <<2*4=8>>8.\n#### 1,008"}
    assert PUBLIC["gsm8k"].answer(row) == "1,008"
