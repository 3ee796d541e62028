"""What a model runner does about budgets, whichever of vLLM's runners it is mixed into.

Compaction before a step, queries captured in it, demand measured after it, and the answer to the
scheduler. How the step itself is shortened to physical lengths is the matter of each runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from growpage.budget.rope import Rotary
from growpage.engine.attention_layers import attention_layers, managed
from growpage.engine.budgeter import (
    AttentionShape,
    Budgeter,
    PendingReport,
    StepRows,
    needs_summaries,
)
from growpage.engine.calibration import centre_keys
from growpage.engine.checks import centres_keys, config_of
from growpage.engine.cpu_layout import cpu_paged_cache
from growpage.engine.messages import ATTRIBUTE, CompactionPlan, StepAnswer, StepMessage
from growpage.engine.parallel import TensorParallel
from growpage.engine.rotation import find_rotary, prove_rotary
from growpage.engine.tap import Probe
from growpage.engine.timer import PhaseTimer

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as ModelRunner
else:
    ModelRunner = object  # V1's or V2's: the next class in the order of inheritance

logger = init_logger(f"vllm.{__name__}")  # vLLM shows its own loggers only


@dataclass(frozen=True)
class PendingAnswer:
    """A step's answer whose measurements may still be on their way from the device."""

    runner: str
    compactions: int
    reports: dict[str, PendingReport] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def settle(self) -> StepAnswer:
        """The answer, once the device has done the step."""
        reports = {request_id: pending.settle() for request_id, pending in self.reports.items()}
        return StepAnswer(self.runner, self.compactions, reports, self.seconds)


class BudgetedRunner(ModelRunner):
    """Budgets for one of vLLM's model runners.

    The runner calls :meth:`_begin_step` before vLLM sees a step, :meth:`_enter_rows` when the batch
    is known, and :meth:`_end_step` after the forward pass.
    """

    budgeter: Budgeter | None = None  # none under the policy `full`
    _warming_up = False

    # ---- set-up ------------------------------------------------------------------------------

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, check its attention layers, centre their keys and tap their queries."""
        super().load_model(load_dummy_weights)
        config = self._budget_config = config_of(self.vllm_config)
        centred = centres_keys(self.vllm_config)
        if config.policy == "full" and not centred:
            return
        self._layers = attention_layers(self.vllm_config)
        if centred:
            centre_keys(self.model, self.vllm_config, self._layers)
        if config.policy == "full":
            return
        self._message = StepMessage()
        self._compactions = 0
        self._timer = PhaseTimer()
        self._answer: PendingAnswer | None = None
        first = next(iter(self._layers.values()))
        self.budgeter = Budgeter(
            config,
            AttentionShape(len(self._layers), first.num_heads, first.head_size, first.impl.scale),
            self._rotary() if needs_summaries(config) else None,
            self.max_num_reqs,
            dtype=self.dtype,
            device=self.device,
            workers=TensorParallel.of_vllm(),
        )
        for index, layer in enumerate(self._layers.values()):
            layer.impl.tap = self.budgeter.tap(index)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """vLLM's specs, those of full attention under our manager."""
        specs = super().get_kv_cache_spec()
        return {name: managed(name, spec) for name, spec in specs.items()}

    def initialize_kv_cache(
        self,
        kv_cache_config: KVCacheConfig,
        is_profiling: bool = False,
        kv_cache_allocation_context: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Allocate the cache and find out how its pages are laid out."""
        super().initialize_kv_cache(
            kv_cache_config, is_profiling, kv_cache_allocation_context=kv_cache_allocation_context
        )
        if self.budgeter is None or is_profiling:
            return
        block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        # The one place that knows the device's attention kernel; another one needs its own layout.
        cache = self.budgeter.cache = cpu_paged_cache(list(self._layers.values()), block)
        self._local_quota = self._budget_config.for_block_size(block).local_quota
        logger.info("growpage: page layout %s, %d tokens a page", cache.layout.name, block)

    def _rotary(self) -> Rotary:
        """How the model rotates its queries, tried on the model itself."""
        rotary = find_rotary(self.model, self._layers)
        # A query is rounded once after its rotation; the rest is deterministic.
        tolerance = max(4 * torch.finfo(self.dtype).eps, 1e-4)
        prove_rotary(rotary, self._queries_at, self.max_model_len, tolerance)
        return rotary

    @torch.inference_mode()
    def _queries_at(self, position: int) -> Tensor:
        """Every layer's query ``[layers, heads, dim]`` for a token at ``position``, all alone."""
        probes = [Probe() for _ in self._layers]
        for probe, layer in zip(probes, self._layers.values(), strict=True):
            layer.impl.tap = probe
        with set_forward_context(None, self.vllm_config, num_tokens=1, skip_compiled=True):
            self.model(
                input_ids=torch.ones(1, dtype=torch.int32, device=self.device),
                positions=torch.tensor([position], device=self.device),
            )
        for layer in self._layers.values():
            layer.impl.tap = None
        return torch.stack([probe.query for probe in probes])

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """While vLLM warms up: on some devices with steps of its own making, without a message."""
        self._warming_up = True
        try:
            yield
        finally:
            self._warming_up = False

    # ---- a step ------------------------------------------------------------------------------

    def _begin_step(self, budgeter: Budgeter, scheduler_output: SchedulerOutput) -> None:
        """Compact what the step's plans say, and follow the coming and going of requests.

        To be called before vLLM sees the step: it zeroes and hands out pages that plans may still
        read.
        """
        unknown = StepMessage() if self._warming_up else None
        message: StepMessage | None = getattr(scheduler_output, ATTRIBUTE, unknown)
        if message is None:
            raise RuntimeError(
                "growpage's worker got a step from another scheduler; start vLLM with both "
                "--scheduler-cls and --worker-cls, as growpage.engine_kwargs() gives them"
            )
        self._message = message
        for plan in message.plans:
            with self._timer.phase("compact"):
                budgeter.compact(plan, self._local_quota)
                self._adopt_pages(plan)
        self._compactions += len(message.plans)
        budgeter.release(scheduler_output.finished_req_ids)
        budgeter.release(scheduler_output.preempted_req_ids or ())
        budgeter.admit(new.req_id for new in scheduler_output.scheduled_new_reqs)
        budgeter.admit(scheduler_output.scheduled_cached_reqs.resumed_req_ids)

    def _enter_rows(self, budgeter: Budgeter, rows: StepRows) -> None:
        """Tell the taps what the step holds, before its forward pass."""
        self._rows = rows
        budgeter.before_forward(rows)

    def _end_step(self, budgeter: Budgeter, scheduler_output: SchedulerOutput) -> None:
        """Take in the step's queries, measure what it asks for, and prepare the answer."""
        if not scheduler_output.total_num_scheduled_tokens:
            return
        with self._timer.phase("capture"):
            budgeter.after_forward(self._rows, idle=self._message.idle)
            if budgeter.entropy is not None:
                self._note_entropy(budgeter)
        reports = self._measure(budgeter)
        self._answer = PendingAnswer(
            type(self).__name__, self._compactions, reports, self._timer.take()
        )
        self._compactions = 0

    def _take_answer(self) -> PendingAnswer | None:
        """The answer to the step that was last carried out, once."""
        answer, self._answer = self._answer, None
        return answer

    def _note_entropy(self, budgeter: Budgeter) -> None:
        """Look at the attention of the step's decode rows."""
        assert budgeter.cache is not None
        decodes = np.flatnonzero(self._rows.decodes)
        if len(decodes) == 0:
            return
        names = [self._rows.request_ids[row] for row in decodes]
        positions = self._rows.start[decodes]
        evicted = np.array([self._message.evicted.get(name, 0) for name in names])
        cached = positions + 1 - evicted
        tables = self._page_tables(names, cdiv(int(cached.max()), budgeter.cache.page_tokens))
        budgeter.note_entropy(names, positions, cached, tables)

    def _measure(self, budgeter: Budgeter) -> dict[str, PendingReport]:
        """Measure the requests that the step asked for."""
        if not self._message.measure:
            return {}
        assert budgeter.cache is not None
        ends = dict(zip(self._rows.request_ids, self._rows.start + self._rows.tokens, strict=True))
        reports: dict[str, PendingReport] = {}
        for request_id, epoch in self._message.measure.items():
            position = int(ends[request_id])
            cached = position - self._message.evicted.get(request_id, 0)
            pages = cdiv(cached, budgeter.cache.page_tokens)
            (table,) = self._page_tables([request_id], pages)
            with self._timer.phase("measure"):
                report = budgeter.measure(request_id, epoch, position, cached, table)
            if report is not None:
                reports[request_id] = report
        return reports

    # ---- what each runner does its own way ---------------------------------------------------

    def _adopt_pages(self, plan: CompactionPlan) -> None:
        """Replace the pages that vLLM's runner remembers of a compressed request."""
        raise NotImplementedError

    def _page_tables(self, request_ids: Sequence[str], pages: int) -> Tensor:
        """The requests' first pages as the step's attention finds them: ``[n, pages]``.

        A row that has fewer is filled up with any pages that there are.
        """
        raise NotImplementedError
