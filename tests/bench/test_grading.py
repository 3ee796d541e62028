"""What counts as right, on answers as models write them."""

from __future__ import annotations

import pytest

from growpage.bench.grading import grade, grade_lines, grade_list, grade_maths
from growpage.bench.problems import Problem, ProblemError

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("expected", "text", "right"),
    [
        ("11050", r"So 170 * 65 = 11050, and the answer is \boxed{11050}.", True),
        ("1,100", "The answer is 1100.", True),
        ("1100", r"\boxed{1,100}", True),
        ("1100", r"It costs \boxed{\$1,100} altogether, for 5 days.", True),
        ("70000", r"the profit is $\boxed{70,000}$ dollars.", True),
        ("12", r"First \boxed{7}, no: \boxed{12}", True),
        ("7", r"First \boxed{7}, no: \boxed{12}", False),
        ("1/2", r"\boxed{\frac{1}{2}}", True),
        (r"\frac{1}{2}", r"\boxed{0.5}", True),
        (r"\frac{3}{4}", r"\boxed{\frac{3}{4}} hours", True),
        ("5", r"\boxed{5\text{ days}}", True),
        ("5", r"\boxed{5 \%}", True),
        ("-3", r"It falls by \boxed{-3} degrees in 2 hours", True),
        ("1010", "He has 20 and then 1,010 left.", True),
        ("20", "He has 20 and then 1,010 left.", False),
        ("(2,3)", r"\boxed{(2, 3)}", True),
        ("x^2+1", r"\boxed{1+x^2}", True),
        ("3.5", r"\boxed{3.50}", True),
        ("5", r"\boxed{}", False),
        ("5", r"\boxed{5", False),
        ("5", "", False),
        ("5", "no number at all", False),
    ],
)
def test_maths(expected: str, text: str, right: bool) -> None:
    assert grade_maths(expected, text) == right


def test_an_answer_that_cannot_be_read_is_said() -> None:
    problem = Problem(id="a", question="?", answer=r"\text{}", family="f")
    with pytest.raises(ProblemError, match="cannot read the expected answer"):
        grade(problem, "5")


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("2, 7, 9, 31", 1),
        ("Sorted: 2, 7, 9, 31.", 1),
        ("Here is the list:\n\n**2, 7, 9, 31**\n", 1),
        ("[2, 7, 9, 31]", 1),
        ("2, 9, 31", 0.75),
        ("7, 2, 9, 31", 0.75),
        ("2, 7, 9, 31, 2, 7, 9, 31", 0.5),
        ("31, 9, 7, 2", 0.25),
        ("", 0),
        ("none", 0),
    ],
)
def test_lists(text: str, share: float) -> None:
    assert grade_list("2, 7, 9, 31", text) == share


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("Anna: 7\nBen: lamp", 1),
        ("Ben: lamp\nAnna: 7", 1),
        ("- **Anna**: 3 + 4 = 7.\n- **Ben**: the lamp", 1),
        ("anna: 7", 0.5),
        ("Anna: 8\nAnna: 7\nBen: lamp", 0.5),
        ("Anna: 7\nBen:", 0.5),
        ("Anna 7, Ben lamp", 0),
        ("", 0),
    ],
)
def test_lines(text: str, share: float) -> None:
    assert grade_lines("Anna: 7\nBen: lamp", text) == share
