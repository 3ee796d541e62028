"""Survivor selection: what must hold for any scores, and exactly who survives when none tie."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from growpage.budget.selection import select_survivors

ROWS = 3


@dataclass(frozen=True)
class Case:
    tokens: int
    keep: int
    prefix: int
    recent: int
    page: int
    local_quota: int

    @property
    def always(self) -> set[int]:
        recent = min(self.recent, self.tokens)
        return {*range(min(self.prefix, self.tokens)), *range(self.tokens - recent, self.tokens)}

    @property
    def quota(self) -> int:
        """The largest quota up to ``local_quota`` that fits into ``keep`` in any case."""
        free = [len(set(page) - self.always) for page in self.pages]
        room = self.keep - len(self.always)
        quotas = range(min(self.local_quota, self.page) + 1)
        return max(quota for quota in quotas if sum(min(quota, f) for f in free) <= room)

    @property
    def pages(self) -> list[range]:
        starts = range(0, self.tokens, self.page)
        return [range(start, min(start + self.page, self.tokens)) for start in starts]

    def select(self, scores: Tensor) -> Tensor:
        return select_survivors(
            scores,
            self.keep,
            prefix=self.prefix,
            recent=self.recent,
            page=self.page,
            local_quota=self.local_quota,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    page = draw(st.sampled_from([4, 8, 32, 64, 80]))
    tokens = draw(st.integers(1, 5 * page))
    prefix = draw(st.integers(0, tokens))
    recent = draw(st.integers(0, tokens + 2 - prefix))
    keep = draw(st.integers(min(prefix + recent, tokens), tokens))
    return Case(tokens, keep, prefix, recent, page, draw(st.integers(0, page + 3)))


def scores_of(kind: str, tokens: int, seed: int) -> Tensor:
    normal = torch.randn(ROWS, tokens, generator=torch.Generator().manual_seed(seed))
    return {
        "normal": normal,
        "negative": -normal.abs() - 1,
        "huge": normal * 1e30,
        "tiny": normal * 1e-40,
        "few values": normal.mul(2).round(),
        "zero": torch.zeros(ROWS, tokens),
        "bfloat16": normal.bfloat16(),
        "float16": normal.half(),
        "float64": normal.double(),
    }[kind]


KINDS = [
    *("normal", "negative", "huge", "tiny", "few values", "zero"),
    *("bfloat16", "float16", "float64"),
]


@settings(max_examples=300)
@given(cases(), st.sampled_from(KINDS), st.integers(0, 99))
def test_what_holds_for_any_scores(case: Case, kind: str, seed: int) -> None:
    scores = scores_of(kind, case.tokens, seed)
    before = scores.clone()
    survivors = case.select(scores)
    assert torch.equal(scores, before), "the scores are the caller's"
    assert survivors.shape == (ROWS, case.keep)
    for row, survived in zip(scores.tolist(), survivors.tolist(), strict=True):
        check_row(case, row, survived)


def check_row(case: Case, row: list[float], survived: list[int]) -> None:
    assert survived == sorted(set(survived)), "ascending, each once"
    kept = set(survived)
    assert kept <= set(range(case.tokens)) and case.always <= kept
    for page in case.pages:
        best = sorted((row[token] for token in page), reverse=True)[: case.quota]
        held = sorted((row[token] for token in page if token in kept), reverse=True)
        assert held[: case.quota] == best, "each page keeps its best"
    lost = max((row[token] for token in range(case.tokens) if token not in kept), default=-inf)
    for token in kept - case.always:
        page = case.pages[token // case.page]
        in_quota = sum(row[other] > row[token] for other in page) < case.quota
        assert in_quota or row[token] >= lost, "the rest are the best that are left"


@given(cases(), st.randoms(use_true_random=False))
def test_survivors_when_no_two_scores_tie(case: Case, random: Random) -> None:
    row = list(range(case.tokens))
    random.shuffle(row)
    expected = set(case.always)
    for page in case.pages:
        expected |= set(sorted(page, key=lambda token: -row[token])[: case.quota])
    rest = sorted(set(range(case.tokens)) - expected, key=lambda token: -row[token])
    expected |= set(rest[: case.keep - len(expected)])
    assert case.select(torch.tensor(row)).tolist() == sorted(expected)


def test_by_hand() -> None:
    scores = torch.tensor([0, 1, 2, 3, 9, 8, 7, 6, 0, 5, 1, 4, 0])
    #                      ^ sink     |           |           | ^ recent and the partial last page
    case = Case(tokens=13, keep=6, prefix=1, recent=1, page=4, local_quota=1)
    assert case.select(scores).tolist() == [0, 3, 4, 5, 9, 12]
    without = Case(tokens=13, keep=6, prefix=1, recent=1, page=4, local_quota=0)
    assert without.select(scores).tolist() == [0, 4, 5, 6, 7, 12]


def test_all_tokens() -> None:
    for prefix, recent in ((0, 0), (5, 5), (9, 9), (0, 30)):
        case = Case(10, 10, prefix, recent, page=4, local_quota=3)
        assert case.select(torch.zeros(2, 3, 10)).tolist() == [[list(range(10))] * 3] * 2


def test_rows_are_independent() -> None:
    scores = torch.randn(2, 4, 70, generator=torch.Generator().manual_seed(0))
    case = Case(70, 40, prefix=4, recent=16, page=32, local_quota=8)
    together = case.select(scores)
    for layer in range(2):
        for head in range(4):
            assert torch.equal(together[layer, head], case.select(scores[layer, head]))


@pytest.mark.parametrize(
    ("keep", "prefix", "recent"), [(19, 4, 16), (65, 4, 16), (63, 64, 0), (63, 0, 80), (-1, 0, 0)]
)
def test_what_cannot_be_kept_is_refused(keep: int, prefix: int, recent: int) -> None:
    message = f"cannot keep {keep} of 64 tokens with the first {prefix} and last {recent} fixed"
    with pytest.raises(ValueError, match=message):
        Case(64, keep, prefix, recent, page=32, local_quota=0).select(torch.zeros(64))


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("score", [-inf, -LARGEST, LARGEST / 4, LARGEST, inf, nan])
@pytest.mark.parametrize("local_quota", [0, 4])
def test_no_score_displaces_what_is_always_kept(score: float, local_quota: int) -> None:
    case = Case(96, 48, prefix=4, recent=16, page=32, local_quota=local_quota)
    scores = torch.zeros(96)
    scores[10:70] = score
    survived = case.select(scores).tolist()
    assert case.always <= set(survived) and len(set(survived)) == 48


@pytest.mark.parametrize("score", [-inf, -LARGEST])
def test_quota_of_a_partial_page_with_the_lowest_scores(score: float) -> None:
    case = Case(10, 6, prefix=0, recent=0, page=4, local_quota=2)
    row = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, score, score]
    check_row(case, row, case.select(torch.tensor(row)).tolist())


def test_quota_is_lowered_only_as_far_as_needed() -> None:
    """A prompt of two pages is kept; the 16 tokens beside it and the last ones can serve page 2."""
    case = Case(128, 96, prefix=64, recent=16, page=32, local_quota=8)
    survived = case.select(torch.arange(128.0))
    assert ((survived >= 64) & (survived < 96)).sum() == 8
