"""Figures of answers that are known: what is right, compared problem by problem, at what memory."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from growpage.bench.answers import Response
from growpage.bench.answers_figure import draw
from growpage.bench.answers_report import ALL, by_family, grade_all, spearman, table
from growpage.bench.problems import Problem

COUNT = 40
PAGE = {"full": 100, "fixed": 100, "ours": 50}
PROBLEMS = [
    Problem(
        id=f"p{index}",
        question="?",
        answer="a: 1\nb: 2",
        grading="lines",
        family="odd" if index % 2 else "even",
        remember="x",
    )
    for index in range(COUNT)
]
DEMANDS = {problem.id: index for index, problem in enumerate(PROBLEMS)}


def response(
    problem: str, text: str, *, pages: int, tokens: int = 10, cut: bool = False
) -> Response:
    return Response(
        problem=problem,
        sample=0,
        text=text,
        tokens=list(range(tokens)),
        prompt_tokens=5,
        finished=not cut,
        steps=10,
        page_steps=10 * pages,
        peak_pages=pages + 1,
        pool_peak=99,
        preemptions=0,
    )


@pytest.fixture
def found():  # type: ignore[no-untyped-def]
    right, half = "a: 1\nb: 2", "a: 1"
    responses = {
        "full": [response(p.id, right, pages=8) for p in PROBLEMS],
        # Half of it wrong in three of four; ours in one of four.
        "fixed": [
            response(p.id, right if at % 4 == 0 else half, pages=4, tokens=20, cut=at % 4 == 1)
            for at, p in enumerate(PROBLEMS)
        ],
        "ours": [
            response(p.id, half if at % 4 == 3 else right, pages=1 + at // 10)
            for at, p in enumerate(PROBLEMS)
        ],
    }
    return by_family(
        PROBLEMS, grade_all(PROBLEMS, responses), DEMANDS, PAGE, full="full", base="fixed"
    )


def test_what_is_right(found) -> None:  # type: ignore[no-untyped-def]
    rows = found[ALL]
    assert rows["full"].accuracy.value == rows["full"].score.value == 1
    assert rows["fixed"].accuracy.value == pytest.approx(0.25)
    assert rows["fixed"].score.value == pytest.approx(0.625)
    assert rows["ours"].score_to_full.value == pytest.approx(-0.125)
    assert rows["ours"].score_to_base.value == pytest.approx(0.25)
    assert rows["ours"].loss_to_base.value == pytest.approx(1 / 3)
    assert rows["ours"].loss_to_base.resolves(1)
    assert rows["full"].score_to_full is None
    assert rows["fixed"].loss_to_base is None


def test_lengths_and_memory(found) -> None:  # type: ignore[no-untyped-def]
    rows = found[ALL]
    assert rows["fixed"].length_to_full.value == pytest.approx(2)
    assert rows["fixed"].unfinished == pytest.approx(0.25)
    assert (rows["full"].mean_pages, rows["full"].mean_bytes) == (8, 800)
    assert rows["ours"].mean_pages == pytest.approx(2.5)
    assert (rows["ours"].peak_pages, rows["ours"].peak_bytes) == (5, 250)
    assert rows["fixed"].page_steps_to_full == pytest.approx(0.5)


def test_families_apart(found) -> None:  # type: ignore[no-untyped-def]
    assert list(found) == [ALL, "even", "odd"]
    assert found["even"]["fixed"].score.value == pytest.approx(0.75)
    assert found["odd"]["fixed"].score.value == pytest.approx(0.5)
    # Demands of different families are not compared.
    assert found[ALL]["ours"].demand_correlation is None
    assert found["odd"]["ours"].demand_correlation == pytest.approx(0.97, abs=0.02)
    assert found["odd"]["fixed"].demand_correlation is None


def test_what_chance_explains_is_not_resolved(found) -> None:  # type: ignore[no-untyped-def]
    same = [response(p.id, "a: 1\nb: 2", pages=8) for p in PROBLEMS]
    graded = grade_all(PROBLEMS, {"full": same, "fixed": same})
    rows = by_family(PROBLEMS, graded, {}, PAGE, full="full", base="fixed")[ALL]
    assert rows["fixed"].as_json()["score_to_full"]["resolved"] is False
    shown = Console(file=StringIO(), width=200)
    shown.print(table("all", rows))
    assert "not resolved" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_fixed_budgets_at_equal_memory_are_a_mixture_of_the_two_next_to_it() -> None:
    def all_of(pages: int, right: int) -> list[Response]:
        """So many in ten are right."""
        return [
            response(p.id, "a: 1\nb: 2" if at % 10 < right else "", pages=pages)
            for at, p in enumerate(PROBLEMS)
        ]

    responses = {
        "full": all_of(16, 10),
        "small": all_of(2, 0),
        "large": all_of(6, 4),
        "between": all_of(5, 8),  # half of the bytes for a page, so as with 2.5
        "above": all_of(22, 9),  # as with 11, between the large one and full KV
        "below": all_of(3, 9),
    }
    bytes_of = dict.fromkeys(responses, 100) | dict.fromkeys(("between", "above", "below"), 50)
    yardstick = ["large", "small"]
    graded = grade_all(PROBLEMS, responses)
    rows = by_family(
        PROBLEMS, graded, {}, bytes_of, full="full", base="small", yardstick=yardstick
    )[ALL]
    # An eighth of the requests by the large budget: 0.05 right.
    assert rows["between"].score_at_equal_memory.value == pytest.approx(0.75)
    assert rows["between"].loss_at_equal_memory.value == pytest.approx(0.2 / 0.95)
    assert rows["between"].as_json()["loss_at_equal_memory"]["resolved"]
    assert rows["above"].score_at_equal_memory.value == pytest.approx(0.9 - 0.7)
    assert rows["below"].score_at_equal_memory is None
    assert all(rows[name].score_at_equal_memory is None for name in ("full", "small", "large"))


def test_the_rank_correlation() -> None:
    assert spearman([1, 2, 3, 4], [10, 100, 1000, 10_000]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # By hand: ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4.
    assert spearman([5, 5, 6, 7], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert spearman([5, 5, 5, 5], [1, 2, 3, 4]) is None


def test_the_figure_has_a_panel_for_each_family(found, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "figure.svg"
    draw(file, found, {"full": "full", "fixed": "fixed", "ours": "elastic"})
    assert file.read_text().count('id="axes_') == 3


def test_its_legend_stands_outside_of_the_panels_and_no_panel_is_empty(  # type: ignore[no-untyped-def]
    found, tmp_path: Path
) -> None:
    file = tmp_path / "figure.svg"
    five = {f"{family} {copy}": rows for copy in (1, 2) for family, rows in found.items()}
    five.popitem()
    draw(file, five, {"full": "full", "fixed": "fixed", "ours": "elastic"})
    drawn = file.read_text()
    assert drawn.count('id="axes_') == 5
    assert drawn.rindex('id="legend_1"') > drawn.rindex('id="axes_5"')
