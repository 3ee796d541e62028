"""Attention entropy against a loop, and its summaries against plain lists of what they saw."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from growpage.budget.entropy import (
    BINS,
    LONG_STEPS,
    SHORT_STEPS,
    EntropySummaries,
    attention_entropy,
    density,
    histogram,
)

SLOTS, DIM = 3, 8
NATS_ERROR, SHARE_ERROR = 1 / 32, 1 / 512  # half a code each
ROUNDING = 1e-6  # the figures arrive in float32


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entropy_is_that_of_a_loop(group: int, dtype: torch.dtype) -> None:
    kv_heads, tokens, lengths = 2, 40, [40, 1, 17]
    generator = torch.Generator().manual_seed(group)
    queries = torch.randn(3, kv_heads * group, DIM, generator=generator)
    keys = torch.randn(3, kv_heads, tokens, DIM, generator=generator).to(dtype)
    expected = []
    for row, length in enumerate(lengths):
        keys[row, :, length:] = torch.nan  # padding may be anything
        heads = []
        for head in range(kv_heads * group):
            logits = keys[row, head // group, :length].double() @ queries[row, head].double()
            weights = (2 * logits).softmax(-1).tolist()
            heads.append(-sum(weight * math.log(weight) for weight in weights if weight))
        expected.append(sum(heads) / len(heads))
    found = attention_entropy(queries, keys, torch.tensor(lengths), 2.0)
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    assert found[1] == 0, "there is one key to look at"


def test_entropy_at_its_ends() -> None:
    """Alike keys are all looked at; one that is far nearer than the others is alone."""
    queries, keys = torch.ones(1, 1, DIM), torch.zeros(1, 1, 64, DIM)
    assert attention_entropy(queries, keys, torch.tensor([64]), 1.0).item() == pytest.approx(
        math.log(64)
    )
    keys[0, 0, 5] = 1e4
    assert attention_entropy(queries, keys, torch.tensor([64]), 1.0).item() == 0


class Plain:
    """What a slot has seen, as it was."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []

    def mean(self) -> float:
        last = [nats for nats, _ in self.steps[-LONG_STEPS:]]
        return sum(last) / len(last)

    def shares(self) -> list[float]:
        last = self.steps[-SHORT_STEPS:]
        return [nats / math.log(keys) if keys > 1 else 0.0 for nats, keys in last]


def see(kept: EntropySummaries, slots: list[int], steps: list[tuple[float, int]]) -> None:
    nats, keys = zip(*steps, strict=True)
    kept.update(slots, torch.tensor(nats), torch.tensor(keys))


def check(kept: EntropySummaries, slot: int, plain: Plain) -> None:
    """Within what a code may be off by; the bins exactly."""
    assert kept.mean(slot).item() == pytest.approx(plain.mean(), abs=NATS_ERROR + ROUNDING)
    shares = plain.shares()
    found = kept.shares(slot)
    assert sorted(found.tolist()) == pytest.approx(sorted(shares), abs=SHARE_ERROR + ROUNDING)
    bins = Counter(min(int(share * BINS), BINS - 1) for share in shares)
    assert histogram(found).tolist() == [bins[each] for each in range(BINS)]
    assert density(found) == max(bins.values()) / len(shares)


a_step = st.tuples(st.integers(0, 63), st.integers(1, 100_000)).map(
    # Never on the edge of a bin, where float32 may say one and a double another.
    lambda drawn: ((drawn[0] + 0.5) / 64 * math.log(drawn[1]), drawn[1])
)
seen_together = st.dictionaries(st.integers(0, SLOTS - 1), a_step, min_size=1)


@given(st.lists(seen_together | st.integers(0, SLOTS - 1), max_size=60))
def test_summaries_are_those_of_plain_lists(
    events: list[dict[int, tuple[float, int]] | int],
) -> None:
    """Of any steps of several slots, some of which are reset in between."""
    kept, plain = EntropySummaries(SLOTS), [Plain() for _ in range(SLOTS)]
    for event in events:
        if isinstance(event, int):
            kept.reset(event)
            plain[event] = Plain()
            continue
        see(kept, list(event), list(event.values()))
        for slot, step in event.items():
            plain[slot].steps.append(step)
    for slot in range(SLOTS):
        assert int(kept.count[slot]) == len(plain[slot].steps)
        if plain[slot].steps:
            check(kept, slot, plain[slot])


def test_old_steps_are_forgotten() -> None:
    kept, plain = EntropySummaries(1), Plain()
    for step in range(LONG_STEPS + 300):
        plain.steps.append((1.0 + (step % 64) / 16, 500 + step))
        see(kept, [0], plain.steps[-1:])
        if step in (SHORT_STEPS, LONG_STEPS, LONG_STEPS + 299):
            check(kept, 0, plain)
    see_one = plain.steps[-1][0]
    assert abs(plain.mean() - see_one) > 3 * NATS_ERROR, "a mean, not the last step"


def test_a_request_costs_less_than_two_kilobytes() -> None:
    assert EntropySummaries(7).bytes_per_slot < 2048
    assert EntropySummaries(7).bytes_per_slot == 512 + 32 + 8


def test_the_most_there_can_be() -> None:
    """Attention to all keys alike is in the last bin, and so is what rounding makes of it."""
    kept = EntropySummaries(1)
    for nats in (math.log(1000), math.log(1000) + 1e-3):
        see(kept, [0], [(nats, 1000)])
    assert histogram(kept.shares(0)).tolist() == [0] * (BINS - 1) + [2]
    kept.reset(0)
    see(kept, [0], [(math.log(8_000_000), 8_000_000)])
    assert kept.mean(0).item() == pytest.approx(math.log(8_000_000), abs=NATS_ERROR)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_shows(broken: float) -> None:
    kept = EntropySummaries(2)
    assert math.isnan(kept.mean(0)), "nothing has been seen"
    see(kept, [0, 1], [(2.0, 100), (2.0, 100)])
    see(kept, [0, 1], [(broken, 100), (2.0, 100)])
    assert math.isnan(kept.mean(0))
    assert kept.mean(1).item() == pytest.approx(2.0, abs=NATS_ERROR)


def test_workers_with_half_of_the_heads_each() -> None:
    """The average of what they keep is what one with all heads would."""
    generator = torch.Generator().manual_seed(0)
    halves = 3 * torch.rand(40, 2, generator=generator)
    first, second, whole = (EntropySummaries(1) for _ in range(3))
    for step in halves:
        for kept, nats in ((first, step[0]), (second, step[1]), (whole, step.mean())):
            see(kept, [0], [(float(nats), 100)])

    def together(one: Tensor, other: Tensor) -> list[float]:
        return ((one + other) / 2).flatten().tolist()

    # Each is off by half a code at most, and so is the one that they are compared with.
    assert together(first.mean(0), second.mean(0)) == pytest.approx(
        [whole.mean(0).item()], abs=2 * NATS_ERROR
    )
    assert together(first.shares(0), second.shares(0)) == pytest.approx(
        whole.shares(0).tolist(), abs=2 * SHARE_ERROR
    )


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.5], 1.0),
        ([0.01, 0.1, 0.12], 1.0),
        ([0.1, 0.13], 0.5),
        ([0.999, 0.88, 0.2, 0.9], 0.75),
        ([(each + 0.5) / BINS for each in range(BINS)], 1 / BINS),
    ],
)
def test_density_is_the_share_of_the_fullest_bin(shares: list[float], expected: float) -> None:
    assert density(torch.tensor(shares, dtype=torch.double)) == expected
