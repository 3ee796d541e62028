"""How problems are read, and what counts as an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from growpage.bench.accuracy import Problem, final_number, load_problems


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"So 3 * 4 = 12, and the answer is \boxed{12}.", 12),
        (r"First \boxed{7}, no: \boxed{\$1,234.50} in 5 days", 1234.5),
        (r"It falls by \boxed{-3} degrees in 2 hours", -3),
        ("He has 20 and then 1,010 left.", 1010),
        (r"\boxed{nothing}, of 4", None),
        ("no number at all", None),
    ],
)
def test_the_final_number(text: str, number: float | None) -> None:
    assert final_number(text) == number


def test_problems(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text('{"id": "a", "question": "?", "answer": "1,100"}\n' * 2)
    assert load_problems(file, 1) == [Problem("a", "?", 1100)]
    with pytest.raises(ValueError, match="holds 2 problems, and 3 were asked for"):
        load_problems(file, 3)
