"""The averages against their closed form, the query window against a plain list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from growpage.budget.rope import Rotary
from growpage.budget.summaries import LONG, SHORT, QuerySummaries, QueryWindow

LAYERS, HEADS, DIM = 2, 3, 4
BETAS = (0.9, 0.999)


def summaries(slots: int = 1, betas: tuple[float, float] = BETAS) -> QuerySummaries:
    return QuerySummaries(slots, LAYERS, HEADS, DIM, betas=betas)


def queries(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, LAYERS, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


def see(kept: QuerySummaries, slot: int, *batches: Tensor) -> None:
    """Batches of queries ``[n, layers, heads, dim]``, noted one by one and taken in at once."""
    for batch in batches:
        for _ in batch:
            kept.note(np.array([slot]))
        kept.take_in(slot, batch)


def closed_form(seen: Tensor, beta: float) -> Tensor:
    """``sum_i (1 - beta) beta^(n-i) q_i / (1 - beta^n)`` in double."""
    n = len(seen)
    weights = (1 - beta) * beta ** torch.arange(n - 1, -1, -1, dtype=torch.float64)
    return torch.tensordot(weights, seen.double(), dims=1) / (1 - beta**n)


@pytest.mark.parametrize("n", [1, 2, 17, 600])
@pytest.mark.parametrize("at_once", [1, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_average_is_the_closed_form(n: int, at_once: int, dtype: torch.dtype) -> None:
    kept, seen = summaries(), queries(n).to(dtype)
    see(kept, 0, *seen.float().split(at_once))
    averages = kept.read(0)
    assert averages.shape == (2, LAYERS, HEADS, DIM) and averages.dtype == torch.float32
    for which, beta in ((SHORT, BETAS[0]), (LONG, BETAS[1])):
        expected = closed_form(seen, beta).float()
        torch.testing.assert_close(averages[which], expected, rtol=1e-5, atol=1e-6)


def test_after_one_query_both_averages_are_that_query() -> None:
    kept, query = summaries(), queries(1)
    see(kept, 0, query)
    torch.testing.assert_close(kept.read(0), query.expand(2, -1, -1, -1), rtol=1e-6, atol=0)


@given(st.integers(1, 200))
def test_bias_correction_leaves_a_constant_alone(n: int) -> None:
    kept, query = summaries(), queries(1)
    for _ in range(n):
        see(kept, 0, query)
    torch.testing.assert_close(kept.read(0), query.expand(2, -1, -1, -1), rtol=1e-5, atol=0)


def test_slots_are_independent_and_can_be_reset() -> None:
    kept, seen = summaries(slots=4), queries(40)
    of: dict[int, list[Tensor]] = {slot: [] for slot in range(4)}
    for step in range(20):
        if step == 11:
            kept.reset(3)
            of[3].clear()
        pair = [(3, 0), (1, 3)][step % 2]
        both = seen[2 * step : 2 * step + 2]
        kept.note(np.array(pair))
        for slot, query in zip(pair, both, strict=True):
            of[slot].append(query)
            kept.take_in(slot, query.unsqueeze(0))
    assert kept.count.tolist() == [10, 10, 0, 9]
    for slot in (0, 1, 3):
        for which, beta in ((SHORT, BETAS[0]), (LONG, BETAS[1])):
            expected = closed_form(torch.stack(of[slot]), beta).float()
            torch.testing.assert_close(kept.read(slot)[which], expected, rtol=1e-5, atol=1e-6)


def test_an_empty_slot_cannot_be_read() -> None:
    kept = summaries(slots=2)
    see(kept, 1, queries(1))
    kept.reset(1)
    for slot in (0, 1):
        with pytest.raises(ValueError, match=f"slot {slot} has seen no decode query"):
            kept.read(slot)


def test_what_is_pending_is_taken_in_before_anything_is_read() -> None:
    kept = summaries()
    kept.note(np.array([0]))
    kept.note(np.array([0]))
    with pytest.raises(ValueError, match="slot 0 has queries to take in"):
        kept.read(0)
    with pytest.raises(ValueError, match="slot 0 has 2 queries to take in, not 3"):
        kept.take_in(0, queries(3))
    assert (kept.count[0], kept.pending[0]) == (2, 2)
    kept.take_in(0, queries(2))
    assert (kept.count[0], kept.pending[0]) == (2, 0)


def test_a_decay_close_to_one() -> None:
    kept, query = summaries(betas=(0.9, 1 - 1e-9)), queries(1)
    see(kept, 0, query)
    torch.testing.assert_close(kept.read(0)[LONG], query[0], rtol=1e-4, atol=0)


SLOTS, SIZE = 3, 5


class Engine:
    """Writes to a window as a step does: of each chunk the last ``size`` queries only."""

    def __init__(self) -> None:
        self.window = QueryWindow(SLOTS, 2, 1, 1, size=SIZE)
        self.position = [0] * SLOTS
        self.seen: list[list[int]] = [[] for _ in range(SLOTS)]

    def admit(self, slot: int, cached: int) -> None:
        """A request whose first ``cached`` tokens come from the prefix cache."""
        self.window.reset(slot)
        self.position[slot] = cached
        self.seen[slot] = []

    def step(self, slot: int, tokens: int) -> None:
        start = self.position[slot]
        end = self.position[slot] = start + tokens
        for position in range(max(start, end - SIZE), end):
            for layer in range(2):
                place = slot * SIZE + position % SIZE
                self.window.ring[layer, place] = 10_000 * layer + 1000 * slot + position
        self.window.advance(slot, end - 1, tokens)
        self.seen[slot] += range(start, end)

    def check(self, slot: int) -> None:
        last = self.seen[slot][-SIZE:]
        read = self.window.read(slot)
        assert read.shape == (2, len(last), 1, 1)
        for layer in range(2):
            expected = [10_000 * layer + 1000 * slot + position for position in last]
            assert read[layer].flatten().tolist() == expected


a_slot = st.integers(0, SLOTS - 1)
chunks = st.tuples(a_slot, st.integers(1, 3 * SIZE))
decodes = st.tuples(a_slot, st.just(1))
admissions = st.tuples(a_slot, st.integers(-40, 0))  # minus the cached tokens


@given(st.lists(chunks | decodes | admissions, max_size=40))
def test_window_holds_the_last_real_queries(events: list[tuple[int, int]]) -> None:
    engine = Engine()
    for slot, amount in events:
        if amount > 0:
            engine.step(slot, amount)
        else:
            engine.admit(slot, -amount)
        for every in range(SLOTS):
            engine.check(every)


def test_window_keeps_the_dtype_of_the_queries() -> None:
    window = QueryWindow(1, LAYERS, HEADS, DIM, size=4, dtype=torch.bfloat16)
    assert window.read(0).shape == (LAYERS, 0, HEADS, DIM)
    window.ring[:] = queries(4).transpose(0, 1)
    window.advance(0, 5, 6)
    expected = queries(4).bfloat16().transpose(0, 1)[:, [2, 3, 0, 1]]
    assert torch.equal(window.read(0), expected)


def test_summaries_that_have_lapsed_start_afresh() -> None:
    kept = summaries(slots=2)
    see(kept, 0, queries(20, seed=1))
    see(kept, 1, queries(20, seed=1))
    kept.note(np.array([0]))
    kept.lapse(np.array([0]))
    with pytest.raises(ValueError, match="has seen no decode query"):
        kept.read(0)
    see(kept, 0, queries(5, seed=2))
    torch.testing.assert_close(kept.read(0)[LONG], closed_form(queries(5, seed=2), 0.999).float())
    assert kept.count.tolist() == [5, 20], "the other slot has missed nothing"


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("dim", "rotary_dim"), [(32, 32), (128, 128), (64, 32), (48, 48)])
def test_queries_are_taken_from_the_window_as_one_by_one(
    dim: int, rotary_dim: int, dtype: torch.dtype, neox: bool
) -> None:
    """Compiled or not, in any number at once, also where the ring has come round."""
    size, slot = 8, 1
    angles = torch.outer(torch.arange(200.0), 50.0 ** -torch.linspace(0, 1, rotary_dim // 2))
    rotary = Rotary(1.2 * torch.cat((angles.cos(), angles.sin()), dim=-1), neox)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(LAYERS, 40, HEADS, dim, generator=generator).to(dtype)
    positions = torch.arange(100, 140)
    window = QueryWindow(3, LAYERS, HEADS, dim, size=size, dtype=dtype)
    window.ring.fill_(torch.nan)
    kept, plain = (QuerySummaries(3, LAYERS, HEADS, dim, betas=BETAS) for _ in range(2))
    done = 0
    for count in (1, 8, 3, 7, 0, 5, 8, 8):
        for index in range(done, done + count):
            window.ring[:, slot * size + int(positions[index]) % size] = seen[:, index]
            window.advance(slot, int(positions[index]), 1)
            for summaries_ in (kept, plain):
                summaries_.note(np.array([slot]))
        kept.take_in_from(window, slot, rotary)
        queries_ = seen[:, done : done + count]
        turned = rotary.unrotate(queries_, positions[done : done + count].view(-1, 1))
        plain.take_in(slot, turned.transpose(0, 1))
        done += count
        torch.testing.assert_close(kept.read(slot), plain.read(slot), rtol=1e-5, atol=1e-6)
    assert done == 40 and kept.pending[slot] == 0
    assert not kept.average[[0, 2]].any(), "the other slots have seen nothing"
