"""What the answers of all contenders say, as figures, a table and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from rich.table import Table

from growpage.bench.answers import Response
from growpage.bench.grading import grade
from growpage.bench.problems import Problem
from growpage.bench.repetition import ends_in_a_loop
from growpage.bench.statistics import Estimate, difference, loss_ratio, mean, ratio

ALL = "all"
"""All families together."""
NOT_RESOLVED = "not resolved"


@dataclass(frozen=True)
class Graded:
    """A contender's answers to the same problem, over its samples."""

    score: float
    """Share that is right."""
    right: float
    """Share of the samples that are right altogether."""
    tokens: float
    looped: float
    unfinished: float
    mean_pages: float
    peak_pages: int
    page_steps: float
    """Pages held times steps: memory over time."""
    preemptions: float


@dataclass(frozen=True)
class Summary:
    """One contender's figures over some problems."""

    problems: int
    accuracy: Estimate
    """Answers that are right altogether: pass@1."""
    score: Estimate
    """Mean share that is right; the accuracy where there is no partial credit."""
    score_to_full: Estimate | None
    """Paired difference of the score to full KV's; none for full KV."""
    score_to_base: Estimate | None
    """Paired difference of the score to the base's; none for the base."""
    loss_to_base: Estimate | None
    """Loss of score over the base's loss; none where the base's loss is not resolved from 0."""
    score_at_equal_memory: Estimate | None
    """Paired difference of the score to that of fixed budgets which hold as much on average."""
    loss_at_equal_memory: Estimate | None
    """Loss of score over that of those; none where theirs is not resolved from 0."""
    tokens: float
    """Mean length of an answer."""
    length_to_full: Estimate | None
    looped: float
    """Share of the answers that end in a loop."""
    unfinished: float
    """Share of the answers that were cut."""
    mean_pages: float
    """Pages a request, over all steps in which any was held."""
    peak_pages: int
    mean_bytes: float
    peak_bytes: int
    page_steps_to_full: float | None
    """Pages times steps, over full KV's: longer answers hold memory for longer."""
    preemptions: float
    """A request."""
    demand_correlation: float | None
    """Spearman's, of a request's mean pages with the tokens that it must remember."""

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON; intervals say whether they resolve a difference."""
        row = asdict(self)
        for key, none in (
            ("score_to_full", 0.0),
            ("score_to_base", 0.0),
            ("loss_to_base", 1.0),
            ("score_at_equal_memory", 0.0),
            ("loss_at_equal_memory", 1.0),
        ):
            estimate: Estimate | None = getattr(self, key)
            if estimate is not None:
                row[key]["resolved"] = estimate.resolves(none)
        return row


def grade_all(
    problems: Sequence[Problem], responses: Mapping[str, Sequence[Response]]
) -> dict[str, dict[str, Graded]]:
    """Every contender's figures by problem."""
    by_id = {problem.id: problem for problem in problems}
    graded = {}
    for contender, given in responses.items():
        samples: dict[str, list[Response]] = defaultdict(list)
        for response in given:
            samples[response.problem].append(response)
        graded[contender] = {
            name: _grade(problem, samples[name]) for name, problem in by_id.items()
        }
    return graded


def summarise(
    graded: Mapping[str, Mapping[str, Graded]],
    demands: Mapping[str, int],
    page_bytes: Mapping[str, int],
    *,
    full: str,
    base: str,
    yardstick: Collection[str] = (),
) -> dict[str, Summary]:
    """Every contender's figures, compared problem by problem: to full KV, to the base, and to the
    fixed budgets of the yardstick at equal memory."""
    return {
        name: _summary(name, graded, demands, page_bytes, full, base, yardstick) for name in graded
    }


def by_family(
    problems: Sequence[Problem],
    graded: Mapping[str, Mapping[str, Graded]],
    demands: Mapping[str, int],
    page_bytes: Mapping[str, int],
    *,
    full: str,
    base: str,
    yardstick: Collection[str] = (),
) -> dict[str, dict[str, Summary]]:
    """The figures over all problems, and over those of each family where there are several.

    Demands of different families are not compared: over all there is no correlation with demand,
    unless there is one family only.

    Args:
        problems: in any order.
        graded: by contender and problem.
        demands: tokens to be remembered, by problem.
        page_bytes: of each contender.
        full: the contender with full KV.
        base: one that all others are compared to.
        yardstick: contenders with fixed budgets; full KV is the largest of them.
    """
    compare = partial(summarise, page_bytes=page_bytes, full=full, base=base, yardstick=yardstick)
    families: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        families[problem.family].append(problem.id)
    several = len(families) > 1
    found = {ALL: compare(graded, {} if several else demands)}
    for family, ids in families.items() if several else ():
        part = {name: {each: rows[each] for each in ids} for name, rows in graded.items()}
        found[family] = compare(part, demands)
    return found


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Rank correlation, ties sharing their mean rank; none where either does not vary."""
    if len(ours) < 3 or len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    return float(np.corrcoef(_ranks(ours), _ranks(theirs))[0, 1])


def table(title: str, summaries: Mapping[str, Summary]) -> Table:
    """A row for each contender."""
    shown = Table(title=title, caption="95% intervals; paired bootstrap over problems")
    for column in (
        "contender", "right", "score", "to full", "to base", "loss / base's", "to fixed",
        "loss / fixed's", "tokens", "x full", "loops", "cut", "pages", "peak", "MiB", "demand rho",
    ):  # fmt: skip
        shown.add_column(column, justify="left" if column == "contender" else "right")
    for name, row in summaries.items():
        shown.add_row(
            name,
            row.accuracy.show(".1%"),
            row.score.show(".3f"),
            _resolved(row.score_to_full, 0, "+.3f"),
            _resolved(row.score_to_base, 0, "+.3f"),
            _resolved(row.loss_to_base, 1, ".2f"),
            _resolved(row.score_at_equal_memory, 0, "+.3f"),
            _resolved(row.loss_at_equal_memory, 1, ".2f"),
            f"{row.tokens:.0f}",
            "" if row.length_to_full is None else f"{row.length_to_full.value:.2f}",
            f"{row.looped:.1%}",
            f"{row.unfinished:.1%}",
            f"{row.mean_pages:.1f}",
            str(row.peak_pages),
            f"{row.mean_bytes / 2**20:.2f}",
            "" if row.demand_correlation is None else f"{row.demand_correlation:.2f}",
        )
    return shown


def _resolved(estimate: Estimate | None, none: float, form: str) -> str:
    if estimate is None:
        return ""
    return estimate.show(form) if estimate.resolves(none) else NOT_RESOLVED


def _grade(problem: Problem, samples: Sequence[Response]) -> Graded:
    scores = [grade(problem, each.text) for each in samples]
    return Graded(
        score=fmean(scores),
        right=fmean(score == 1 for score in scores),
        tokens=fmean(len(each.tokens) for each in samples),
        looped=fmean(ends_in_a_loop(each.tokens) for each in samples),
        unfinished=fmean(not each.finished for each in samples),
        mean_pages=sum(each.page_steps for each in samples)
        / max(1, sum(each.steps for each in samples)),
        peak_pages=max(each.peak_pages for each in samples),
        page_steps=fmean(each.page_steps for each in samples),
        preemptions=fmean(each.preemptions for each in samples),
    )


def _summary(
    name: str,
    graded: Mapping[str, Mapping[str, Graded]],
    demands: Mapping[str, int],
    page_bytes: Mapping[str, int],
    full: str,
    base: str,
    yardstick: Collection[str],
) -> Summary:
    rows = graded[name]
    score = {who: {each: row.score for each, row in graded[who].items()} for who in graded}
    tokens = {who: {each: row.tokens for each, row in graded[who].items()} for who in graded}
    page_steps = sum(row.page_steps for row in rows.values())
    mean_pages = _mean_pages(rows)
    held = {who: _mean_pages(graded[who]) * page_bytes[who] for who in graded}
    budgets = {*yardstick, full}
    fixed = None if name in budgets else _score_at(held[name], score, held, budgets)
    fixed_loses = fixed is not None and difference(score[full], fixed).resolves(0)
    peak_pages = max(row.peak_pages for row in rows.values())
    demanding = [each for each in rows if each in demands]
    base_loss = None if base == full else difference(score[full], score[base])
    loss_known = base_loss is not None and base_loss.resolves(0) and name not in (full, base)
    return Summary(
        problems=len(rows),
        accuracy=mean({each: row.right for each, row in rows.items()}),
        score=mean(score[name]),
        score_to_full=None if name == full else difference(score[name], score[full]),
        score_to_base=None if name == base else difference(score[name], score[base]),
        loss_to_base=loss_ratio(score[name], score[base], score[full]) if loss_known else None,
        score_at_equal_memory=None if fixed is None else difference(score[name], fixed),
        loss_at_equal_memory=loss_ratio(score[name], fixed, score[full])
        if fixed is not None and fixed_loses
        else None,
        tokens=fmean(tokens[name].values()),
        length_to_full=None if name == full else ratio(tokens[name], tokens[full]),
        looped=fmean(row.looped for row in rows.values()),
        unfinished=fmean(row.unfinished for row in rows.values()),
        mean_pages=mean_pages,
        peak_pages=peak_pages,
        mean_bytes=held[name],
        peak_bytes=peak_pages * page_bytes[name],
        page_steps_to_full=None
        if name == full
        else page_steps / sum(row.page_steps for row in graded[full].values()),
        preemptions=fmean(row.preemptions for row in rows.values()),
        demand_correlation=spearman(
            [rows[each].mean_pages for each in demanding], [demands[each] for each in demanding]
        ),
    )


def _mean_pages(rows: Mapping[str, Graded]) -> float:
    """Pages a request, over all steps in which any was held."""
    steps = sum(row.page_steps / row.mean_pages for row in rows.values() if row.mean_pages)
    return sum(row.page_steps for row in rows.values()) / steps if steps else 0.0


def _score_at(
    memory: float,
    score: Mapping[str, Mapping[str, float]],
    held: Mapping[str, float],
    budgets: Collection[str],
) -> dict[str, float] | None:
    """Scores by problem that fixed budgets have while they hold so many bytes on average.

    Of the two budgets next to it, one serves a share of the requests and the other all the rest,
    by chance, so that the mean memory is just this. None where it is not between two of them.
    """
    for low, high in pairwise(sorted(budgets, key=held.__getitem__)):
        if held[low] <= memory <= held[high] and held[low] < held[high]:
            share = (memory - held[low]) / (held[high] - held[low])
            return {
                problem: (1 - share) * ours + share * score[high][problem]
                for problem, ours in score[low].items()
            }
    return None


def _ranks(values: Sequence[float]) -> np.ndarray:
    table = np.asarray(values, dtype=float)
    _, where, counts = np.unique(table, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[where])
