"""How much of an answer is right, from 0 to 1.

``maths``: 1 where math-verify finds the answer equal to the expected one, else 0. ``list``: items
in the right order, as a share. ``lines``: labelled lines with the right value, as a share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from growpage.bench.problems import Grading, Problem, ProblemError

TIMEOUT_S = 5
"""Of reading one answer, and of comparing it."""


def grade(problem: Problem, text: str) -> float:
    """The share of the problem's answer that ``text`` has right.

    Call it in a process's main thread: math-verify stops what takes too long by a signal.

    Raises:
        ProblemError: math-verify is needed and not installed, or cannot read the expected answer.
    """
    return _GRADERS[problem.grading](problem.answer, text)


def grade_maths(expected: str, text: str) -> float:
    """1 where the final answer of ``text`` equals ``expected``, else 0.

    The final answer is what the last box holds, or else the last expression.
    """
    try:
        from math_verify import parse, verify
    except ModuleNotFoundError:
        raise ProblemError(
            "answers in mathematics are judged by math-verify: pip install 'growpage[bench]'"
        ) from None
    read = partial(parse, parsing_timeout=TIMEOUT_S)
    wanted = read(f"\\boxed{{{_plain(expected)}}}")
    if not wanted:
        raise ProblemError(f"math-verify cannot read the expected answer {expected!r}")
    found = read(_from_last_box(text))
    return float(bool(found) and verify(wanted, found, timeout_seconds=TIMEOUT_S))


def grade_list(expected: str, text: str) -> float:
    """Items of a comma-separated list that come in the right order.

    That is the longest common subsequence, over the longer list's length: what is missing,
    misplaced or too much costs equally.
    """
    wanted = _items(expected)
    found = _items(_last_filled_line(text))
    return _common_subsequence(wanted, found) / max(len(wanted), len(found))


def grade_lines(expected: str, text: str) -> float:
    """Lines ``label: value`` that have the right value, as a share.

    What stands between the label and the last word of its line is working, and free. A label's
    first line counts.
    """
    wanted, found = _labelled(expected), _labelled(text)
    return sum(found.get(label) == value for label, value in wanted.items()) / len(wanted)


_GRADERS: Mapping[Grading, Callable[[str, str], float]] = {
    "maths": grade_maths,
    "list": grade_list,
    "lines": grade_lines,
}


def _plain(number: str) -> str:
    """Without separators of thousands, which could be read as a list's."""
    text = number.strip()
    return text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text) else text


def _from_last_box(text: str) -> str:
    """The last box and what follows it; the whole text where there is none."""
    return text[max(text.rfind("\\boxed"), text.rfind("\\fbox"), 0) :]


def _last_filled_line(text: str) -> str:
    """The last line with a comma, or else the last that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    listed = [line for line in lines if "," in line]
    return (listed or lines or [""])[-1].rpartition(":")[2]


def _items(line: str) -> list[str]:
    return [item for part in line.split(",") if (item := part.strip().strip(".`*\"'[]() ").lower())]


def _labelled(text: str) -> dict[str, str]:
    """Values by label, of lines such as ``- **Anna**: 3 + 4 = 7.``"""
    found: dict[str, str] = {}
    for line in text.splitlines():
        label, colon, rest = line.partition(":")
        words = rest.strip().rstrip(".`* ").split()
        if colon and words:
            found.setdefault(label.strip(" -*`#").lower(), words[-1].strip("`*$(),").lower())
    return found


def _common_subsequence(wanted: Sequence[str], found: Sequence[str]) -> int:
    row = [0] * (len(found) + 1)
    for item in wanted:
        above = row
        row = [0]
        for index, other in enumerate(found):
            row.append(above[index] + 1 if item == other else max(above[index + 1], row[index]))
    return row[-1]
