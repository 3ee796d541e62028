"""Every family's problems can be solved from what they say, and are judged as they should be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import get_args

import pytest

from growpage.bench.grading import grade
from growpage.bench.problems import Problem
from growpage.bench.tasks import FAMILIES, Difficulty
from growpage.bench.tasks.words import NAMES, SENTENCES, THINGS

SIZES = [(family, difficulty) for family in FAMILIES for difficulty in get_args(Difficulty)]


def solve_recall(question: str) -> str:
    facts = dict(re.findall(r"^(\w+): (\w+)$", question, re.MULTILINE))
    asked = question.rpartition("presents of ")[2].rstrip("?").split(", ")
    return "\n".join(f"{name}: {facts[name]}" for name in asked)


def solve_copying(question: str) -> str:
    return question.partition(": ")[2]


def solve_sorting(question: str) -> str:
    numbers = map(int, question.partition(": ")[2].split(", "))
    return ", ".join(map(str, sorted(numbers)))


def solve_series(question: str) -> str:
    price = {thing: int(cost) for thing, cost in re.findall(r"^(\w+): (\d)$", question, re.M)}
    asked = re.findall(r"^(\d+\. )(.+)$", question, re.MULTILINE)
    return "\n".join(
        f"{number}{terms}: {sum(price[term] for term in terms.split(' + '))}"
        for number, terms in asked
    )


def solve_bookkeeping(question: str) -> str:
    total = {name: int(coins) for name, coins in re.findall(r"^(\w+) has (\d+)$", question, re.M)}
    lines = []
    for step, name, change in re.findall(r"^(Step \d+): (\w+) \+ (\d+)$", question, re.MULTILINE):
        total[name] += int(change)
        lines.append(f"{step}: {total[name]}")
    return "\n".join(lines)


SOLVERS: Mapping[str, Callable[[str], str]] = {
    "recall": solve_recall,
    "copying": solve_copying,
    "sorting": solve_sorting,
    "series": solve_series,
    "bookkeeping": solve_bookkeeping,
}


@pytest.mark.parametrize(("family", "difficulty"), SIZES)
def test_what_a_problem_says_suffices_to_solve_it(family: str, difficulty: Difficulty) -> None:
    for problem in FAMILIES[family].problems(30, difficulty, seed=1):
        assert grade(problem, SOLVERS[family](problem.question)) == 1
        assert grade(problem, problem.answer) == 1
        for question, answer in problem.examples:
            shown = problem.model_copy(update={"answer": answer})
            assert grade(shown, SOLVERS[family](question)) == 1


@pytest.mark.parametrize(("family", "difficulty"), SIZES)
def test_half_an_answer_gets_credit_in_part(family: str, difficulty: Difficulty) -> None:
    for problem in FAMILIES[family].problems(30, difficulty, seed=1):
        separator = ", " if problem.grading == "list" else "\n"
        items = problem.answer.split(separator)
        kept = separator.join(items[: len(items) // 2])
        assert grade(problem, kept) == pytest.approx(len(items) // 2 / len(items))


@pytest.mark.parametrize(("family", "difficulty"), SIZES)
def test_the_same_seed_gives_the_same_and_another_gives_others(
    family: str, difficulty: Difficulty
) -> None:
    make = FAMILIES[family].problems
    assert make(20, difficulty, 3) == make(20, difficulty, 3)
    assert make(20, difficulty, 3)[:5] == make(5, difficulty, 3)
    assert make(20, difficulty, 3) != make(20, difficulty, 4)


@pytest.mark.parametrize(("family", "difficulty"), SIZES)
def test_demand_varies_and_is_part_of_the_question(family: str, difficulty: Difficulty) -> None:
    problems = FAMILIES[family].problems(60, difficulty, seed=0)
    demands = [len(remembered(problem)) for problem in problems]
    assert max(demands) >= 2.5 * min(demands)
    for problem in problems:
        assert all(part in problem.question for part in remembered(problem).splitlines())


def remembered(problem: Problem) -> str:
    assert problem.remember
    return problem.remember


def test_words_are_unlike_each_other() -> None:
    for words in (NAMES, THINGS, SENTENCES):
        assert len(set(words)) == len(words)
    assert not set(NAMES) & set(THINGS)
