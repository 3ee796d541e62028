"""The worker's half of a budget: remembers queries, measures demand, compacts pages.

Knows requests, slots and pages, but no model runner: the runner tells it what each step holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from growpage.budget.config import SUMMARY_SCORES, BudgetConfig, ScoreName
from growpage.budget.demand import WORKING_SETS, Demand, at_equal_norm, demand_by_head
from growpage.budget.entropy import EntropySummaries, attention_entropy, density
from growpage.budget.over_heads import OVER_HEADS, Mean
from growpage.budget.policies import measures_demand, tracks_entropy
from growpage.budget.rope import Rotary
from growpage.budget.scores import SCORES, CacheView
from growpage.budget.selection import fitting_quota, select_survivors
from growpage.budget.summaries import QuerySummaries, QueryWindow
from growpage.engine.messages import CompactionPlan, DemandReport
from growpage.engine.parallel import TensorParallel
from growpage.engine.tap import CaptureStep, QueryTap
from growpage.kvcache.paged import PagedCache

LOSS_PAGES = 4
"""Smaller capacities, one page apart, for which a loss is predicted."""


class PlanError(RuntimeError):
    """A compression cannot be carried out; names the request."""


@dataclass(frozen=True)
class AttentionShape:
    """What all layers have in common."""

    layers: int
    query_heads: int
    """Of this worker, as everything here."""
    head_size: int
    scale: float


@dataclass(frozen=True)
class StepRows:
    """The requests of a step, in batch order."""

    request_ids: Sequence[str]
    start: np.ndarray
    """``[n]`` logical position of each request's first token."""
    tokens: np.ndarray
    """``[n]`` tokens scheduled."""
    prompt: np.ndarray
    """``[n]`` prompt lengths."""

    @property
    def decodes(self) -> np.ndarray:
        """``[n]``: one token, and that one generated."""
        return (self.tokens == 1) & (self.start >= self.prompt)


@dataclass(frozen=True)
class PendingReport:
    """A measurement whose figures may still be on their way from the device."""

    epoch: int
    position: int
    cached: int
    demand: Tensor
    """``[3 + n]`` on the host: ``D_p`` of both summaries, their difference, and the mean mass lost
    at ``n`` smaller sizes, of all layers and query heads."""
    entropy: Tensor
    """``[1 + m]`` on the host: mean entropy, and the shares of the last ``m`` steps, averaged over
    workers; empty if entropy is not tracked."""

    def settle(self) -> DemandReport:
        """The report, once the device has done the step."""
        short, long, difference, *losses = self.demand.tolist()
        demand = Demand(short, long, self.cached, tuple(losses), difference=difference)
        if len(self.entropy):
            mean, shares = self.entropy[0], self.entropy[1:]
            demand = replace(demand, entropy=mean.item(), density=density(shares))
        return DemandReport(self.epoch, self.position, demand)


class Budgeter:
    """Everything about budgets in one worker.

    Args:
        config: the budget.
        shape: the model's attention.
        rotary: its rotation, needed to build summaries; none for a policy and score without them.
        max_requests: slots, one for each request that runs.
        dtype: of the queries.
        device: where the queries are.
        workers: those that hold the model's other heads.
    """

    def __init__(
        self,
        config: BudgetConfig,
        shape: AttentionShape,
        rotary: Rotary | None,
        max_requests: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        workers: TensorParallel,
    ) -> None:
        self.config = config
        self.workers = workers
        self.shape = shape
        self.rotary = rotary
        self.device = device
        self.step = CaptureStep()
        sizes = (max_requests, shape.layers, shape.query_heads, shape.head_size)
        self.window = QueryWindow(*sizes, size=config.window, dtype=dtype, device=device)
        self.summaries = (
            QuerySummaries(*sizes, betas=(config.beta_short, config.beta_long), device=device)
            if needs_summaries(config)
            else None
        )
        self.entropy = (
            EntropySummaries(max_requests, device=device) if tracks_entropy(config) else None
        )
        share = shape.layers * shape.query_heads, workers.rank, workers.size
        self.over_heads = OVER_HEADS[config.over_heads](*share)
        self.mean_over_heads = Mean(*share)
        self.entropy_layer = shape.layers // 2
        self.cache: PagedCache | None = None
        self._slots: dict[str, int] = {}
        self._free_slots = list(range(max_requests))

    def tap(self, layer: int) -> QueryTap:
        """The tap through which ``layer``'s queries arrive."""
        return QueryTap(self.step, self.window.ring[layer])

    # ---- requests ----------------------------------------------------------------------------

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended or lost their cache."""
        for request_id in request_ids:
            slot = self._slots.pop(request_id, None)
            if slot is not None:
                self._free_slots.append(slot)

    def admit(self, request_ids: Iterable[str]) -> None:
        """Start afresh for requests whose prefill begins."""
        for request_id in request_ids:
            slot = self._slots.get(request_id)
            if slot is None:
                slot = self._slots[request_id] = self._free_slots.pop()
            self.window.reset(slot)
            if self.summaries is not None:
                self.summaries.reset(slot)
            if self.entropy is not None:
                self.entropy.reset(slot)

    # ---- a step ------------------------------------------------------------------------------

    def before_forward(self, rows: StepRows) -> None:
        """Tell the taps which queries of the step to keep: each request's last ``window``."""
        size = self.window.size
        slots = self._slots_of(rows.request_ids)
        self._take_in_queries(slots, rows.decodes)
        ends = np.cumsum(rows.tokens)
        if ends[-1] == len(ends):
            self.step.rows = None
            places = slots * size + rows.start % size
        else:
            kept = np.minimum(rows.tokens, size)
            owner = np.repeat(np.arange(len(kept)), kept)
            back = np.repeat(np.cumsum(kept), kept) - np.arange(len(owner))  # 1 is the last token
            self.step.rows = torch.from_numpy(ends[owner] - back).to(self.device)
            position = (rows.start + rows.tokens)[owner] - back
            places = slots[owner] * size + position % size
        self.step.targets, self.step.count = torch.from_numpy(places).to(self.device), len(places)
        self.window.advance(slots, rows.start + rows.tokens - 1, rows.tokens)

    def after_forward(self, rows: StepRows, *, idle: bool = False) -> None:
        """Note the step's decode queries for the summaries.

        Args:
            rows: those of the step.
            idle: nothing will be measured soon, so summaries that only measurements need lapse.
        """
        self.step.targets = None
        if self.summaries is None:
            return
        slots = self._slots_of(rows.request_ids)[rows.decodes]
        if idle and self.config.score not in SUMMARY_SCORES:
            self.summaries.lapse(slots)
        else:
            self.summaries.note(slots)

    def _take_in_queries(self, slots: np.ndarray, decodes: np.ndarray) -> None:
        """Let summaries take in pending queries before the window loses them, a few each step.

        A query is lost when the window has come round, and can no longer be told from those of
        other tokens once a step holds more of its request than the next decode.
        """
        if self.summaries is None:
            return
        pending = self.summaries.pending[slots]
        must = (pending >= self.window.size) | ((pending > 0) & ~decodes)
        # As many as fall due in a step on average, so that they do not all do in the same one.
        share = -(-len(slots) // self.window.size)
        early = np.argsort(-pending, kind="stable")[:share]
        must[early] |= pending[early] >= -(-self.window.size // 2)
        for slot in slots[must].tolist():
            self._settle_summaries(slot)

    def _settle_summaries(self, slot: int) -> None:
        """Take in the queries of ``slot`` that are pending."""
        assert self.rotary is not None and self.summaries is not None
        self.summaries.take_in_from(self.window, slot, self.rotary)

    def _slots_of(self, request_ids: Sequence[str]) -> np.ndarray:
        return np.array([self._slots[request_id] for request_id in request_ids], dtype=np.int64)

    def note_entropy(
        self, request_ids: Sequence[str], positions: np.ndarray, cached: np.ndarray, tables: Tensor
    ) -> None:
        """Take in the attention entropy of a step's decode rows, after its forward pass.

        Args:
            request_ids: ``[n]``.
            positions: ``[n]`` logical position of each one's token.
            cached: ``[n]`` tokens that it has attended to, itself included.
            tables: ``[n, pages]``, each row's first pages being those.
        """
        assert self.entropy is not None and self.cache is not None
        layer, size = self.entropy_layer, self.window.size
        slots = self._slots_of(request_ids)
        places = torch.from_numpy(slots * size + positions % size).to(self.device)
        queries = self.window.ring[layer, places]
        lengths = torch.from_numpy(cached).to(self.device)
        entropy = torch.empty(len(slots), device=self.device)
        for rows in self.cache.row_chunks(cached.tolist()):
            pages = -(-int(cached[rows[0]]) // self.cache.page_tokens)
            (keys,) = self.cache.keys(slice(layer, layer + 1), tables[rows, :pages])
            entropy[rows] = attention_entropy(queries[rows], keys, lengths[rows], self.shape.scale)
        self.entropy.update(slots.tolist(), entropy, lengths)

    # ---- demand and eviction -----------------------------------------------------------------

    def measure(
        self, request_id: str, epoch: int, position: int, cached: int, table: Tensor
    ) -> PendingReport | None:
        """The request's working sets over ``cached`` tokens in the pages of ``table [n]``.

        None while its summaries are cold.
        """
        slot = self._slots[request_id]
        assert self.summaries is not None and self.cache is not None
        if self.summaries.count[slot] < self.config.warmup:
            return None
        summaries = self._rotated_summaries(slot, position)
        if self.config.equal_norm:
            summaries = at_equal_norm(summaries)
        fewer = [cached - pages * self.cache.page_tokens for pages in range(1, LOSS_PAGES + 1)]
        capacities = [size for size in fewer if size > 0]
        by_head = []
        asked = self.shape.scale, self.config.mass, capacities
        packed = self.cache.attending
        if packed is not None:
            by_head.append(packed.demand_by_head(table, cached, summaries, *asked))
        else:
            for layers in self.cache.layer_chunks(cached):
                keys = self.cache.float_keys(layers, table)[:, :, :cached]
                by_head.append(demand_by_head(summaries[:, layers], keys, *asked))
        # Every query head is on one worker, also where KV heads are replicated.
        sizes, losses = torch.cat(by_head).tensor_split((WORKING_SETS,), dim=1)
        shares = [self.over_heads.share(sizes), self.mean_over_heads.share(losses)]
        if self.entropy is not None:
            shares += [self.entropy.mean(slot).view(1), self.entropy.shares(slot)]
        lengths = [len(share) for share in shares]
        sizes, losses, *entropy = torch.split(self.workers.total(torch.cat(shares)), lengths)
        demand = torch.cat((self.over_heads.settle(sizes), self.mean_over_heads.settle(losses)))
        figures = torch.cat((demand, *(each / self.workers.size for each in entropy)))
        demand, entropies = figures.to("cpu", non_blocking=True).tensor_split((len(demand),))
        return PendingReport(epoch, position, cached, demand, entropies)

    def compact(self, plan: CompactionPlan, local_quota: int) -> None:
        """Choose the survivors of ``plan`` and move them to their pages.

        Raises:
            PlanError: there is no such request, or something went wrong. Pages may be half written
                then, so the engine must not go on.
        """
        if plan.request_id not in self._slots:
            raise PlanError(
                f"growpage was to compress request {plan.request_id}, which this worker does not "
                "know; scheduler and worker disagree, and the engine cannot go on"
            )
        try:
            self._compact(plan, local_quota)
        except Exception as error:
            raise PlanError(
                f"growpage could not compress request {plan.request_id} from {plan.tokens} to "
                f"{plan.survivors} tokens: {type(error).__name__}: {error}"
            ) from error

    def _compact(self, plan: CompactionPlan, local_quota: int) -> None:
        assert self.cache is not None
        page = self.cache.page_tokens
        untouched = len(plan.kept) * page
        filled = plan.target[: -(-(plan.survivors - untouched) // page)]
        slot, name = self._slots[plan.request_id], self.config.score
        if name in SUMMARY_SCORES:
            assert self.summaries is not None
            if self.summaries.count[slot] == 0:
                name = "window"  # compressed before the first decode: only prompt queries are known
        rules = {"prefix": plan.prefix, "recent": self.config.recent, "page": page}
        table = torch.tensor((*plan.kept, *plan.source), device=self.device)
        held = min(self.window.held(slot), plan.tokens)
        places, _ = self.window.places(slot, held)
        packed, ring = self.cache.attending, self.window.ring
        if name == "window" and packed is not None and packed.takes(ring):
            packed.compact_by_window(
                table,
                torch.tensor((*plan.kept, *filled)),
                plan.tokens,
                ring,
                places,
                self.shape.scale,
                plan.survivors,
                prefix=plan.prefix,
                recent=self.config.recent,
                quota=fitting_quota(plan.tokens, plan.survivors, **rules, local_quota=local_quota),
            )
            return
        survivors = [
            select_survivors(scores, plan.survivors, **rules, local_quota=local_quota)[
                ..., untouched:
            ]
            for scores in self._scores(name, plan, slot, table, ring[:, places])
        ]
        source, target = (
            torch.tensor(pages, device=self.device) for pages in (plan.source, filled)
        )
        self.cache.compact(source, target, torch.cat(survivors) - untouched)

    def _scores(
        self, name: ScoreName, plan: CompactionPlan, slot: int, table: Tensor, window: Tensor
    ) -> Iterator[Tensor]:
        """Scores of ``plan``'s tokens by the score ``name``, some layers at a time."""
        assert self.cache is not None
        summaries = self._rotated_summaries(slot, plan.position) if name in SUMMARY_SCORES else None
        for layers in self.cache.layer_chunks(plan.tokens):
            yield SCORES[name](
                CacheView(
                    keys=self.cache.float_keys(layers, table)[:, :, : plan.tokens],
                    values=self.cache.float_values(layers, table)[:, :, : plan.tokens],
                    scale=self.shape.scale,
                    window=window[layers],
                    summaries=None if summaries is None else summaries[:, layers],
                    # Not the request's id, of which vLLM draws a part.
                    seed=_seed(self.config.seed, slot, plan.position, layers.start),
                )
            )

    def averages(self, slot: int) -> Tensor:
        """Both summaries before rotation: ``[2, layers, heads, dim]``.

        Raises:
            ValueError: the slot has seen no decode query.
        """
        assert self.summaries is not None
        self._settle_summaries(slot)
        return self.summaries.read(slot)

    def _rotated_summaries(self, slot: int, position: int) -> Tensor:
        """Both summaries as queries at ``position``: ``[2, layers, heads, dim]``."""
        assert self.rotary is not None
        where = torch.tensor([position], device=self.device)
        return self.rotary.rotate(self.averages(slot), where)


def needs_summaries(config: BudgetConfig) -> bool:
    """Whether anything that ``config`` names looks at the query summaries."""
    return measures_demand(config) or config.score in SUMMARY_SCORES


def _seed(*parts: object) -> int:
    """A seed that is the same in every run and process, unlike ``hash``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest)
