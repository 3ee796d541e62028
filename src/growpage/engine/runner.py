"""The model runner: vLLM's own (V1), seeing each request's cache as short as it physically is.

RoPE positions and sampling stay logical; only lengths and slots that attention uses are physical.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from growpage.budget.rope import Rotary
from growpage.engine.backend import GrowPageCPUImpl
from growpage.engine.budgeter import AttentionShape, Budgeter, StepRows, needs_summaries
from growpage.engine.checks import REMEDY, UnsupportedError, config_of
from growpage.engine.cpu_layout import cpu_page_layout
from growpage.engine.messages import ATTRIBUTE, CompactionPlan, DemandReport, StepMessage
from growpage.engine.parallel import TensorParallel
from growpage.engine.rotation import find_rotary, prove_rotary
from growpage.engine.spec import GrowPageSpec
from growpage.engine.tap import Probe
from growpage.kvcache.paged import PagedCache, stack_layers

logger = init_logger(__name__)


class GrowPageCPUModelRunner(CPUModelRunner):
    """vLLM's CPU model runner (V1) with budgets."""

    budgeter: Budgeter | None = None  # none under the policy `full`

    # ---- set-up ------------------------------------------------------------------------------

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, check its attention layers, and tap their queries."""
        super().load_model(load_dummy_weights)
        self._budget_config = config_of(self.vllm_config)
        self._message = StepMessage()
        self._reports: dict[str, DemandReport] = {}
        if self._budget_config.policy == "full":
            return
        self._layers = _attention_layers(self)
        first = next(iter(self._layers.values()))
        config = self._budget_config
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
        return {name: _managed(name, spec) for name, spec in specs.items()}

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
        layers = list(self._layers.values())
        block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        dim = layers[0].head_size
        cache = stack_layers([layer.kv_cache for layer in layers])
        layout = cpu_page_layout(layers[0].isa, block, dim, cache.dtype)
        self.budgeter.cache = PagedCache(cache.view(*cache.shape[:3], 2, block * dim), layout, dim)
        self._local_quota = self._budget_config.for_block_size(block).local_quota
        logger.info("growpage: page layout %s, %d tokens a page", layout.name, block)

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

    # ---- a step ------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        intermediate_tensors: IntermediateTensors | None = None,
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | IntermediateTensors | None:
        """Compact what the step's plans say, run the step, and measure what it asks for."""
        budgeter = self.budgeter
        if budgeter is None:
            return super().execute_model(scheduler_output, intermediate_tensors)
        message: StepMessage | None = getattr(scheduler_output, ATTRIBUTE, None)
        if message is None:
            raise RuntimeError(
                "growpage's worker got a step from another scheduler; start vLLM with both "
                "--scheduler-cls and --worker-cls, as growpage.engine_kwargs() gives them"
            )
        self._message = message
        # Before vLLM sees the step: it zeroes and hands out pages that plans may still read.
        for plan in message.plans:
            budgeter.compact(plan, self._local_quota)
            self._adopt_pages(plan)
        output = super().execute_model(scheduler_output, intermediate_tensors)
        if scheduler_output.total_num_scheduled_tokens:
            budgeter.after_forward(self._rows)
            self._measure(budgeter)
        return output

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | IntermediateTensors:
        """Sample, and send the demand reports along with the tokens."""
        output = super().sample_tokens(grammar_output)
        if self._reports:
            carrier = getattr(output, "_model_runner_output", output)  # unwrap an async output
            setattr(carrier, ATTRIBUTE, self._reports)
            self._reports = {}
        return output

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        if self.budgeter is not None:
            cached = scheduler_output.scheduled_cached_reqs
            self.budgeter.release(scheduler_output.finished_req_ids)
            self.budgeter.release(scheduler_output.preempted_req_ids or ())
            self.budgeter.admit(new.req_id for new in scheduler_output.scheduled_new_reqs)
            self.budgeter.admit(cached.resumed_req_ids)
        return super()._update_states(scheduler_output)

    def _prepare_inputs(
        self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray
    ) -> Any:
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        if self.budgeter is not None:
            batch, n = self.input_batch, self.input_batch.num_reqs
            self._rows = StepRows(
                request_ids=tuple(batch.req_ids[:n]),
                start=batch.num_computed_tokens_cpu[:n].astype(np.int64),
                tokens=num_scheduled_tokens.astype(np.int64),
                prompt=batch.num_prompt_tokens[:n].astype(np.int64),
            )
            self.budgeter.before_forward(self._rows)
            if self._message.evicted:
                self._shorten(self._rows)
        return prepared

    def _shorten(self, rows: StepRows) -> None:
        """Make lengths and slots physical. Only now: vLLM has compared the logical ones before."""
        n = len(rows.request_ids)
        evicted = torch.tensor(
            [self._message.evicted.get(rid, 0) for rid in rows.request_ids], dtype=torch.int32
        )
        self.optimistic_seq_lens_cpu[:n] -= evicted
        evicted = evicted.to(self.device)
        self.seq_lens[:n] -= evicted
        tokens = int(rows.tokens.sum())
        owner = self.req_indices.gpu[:tokens].long()
        self.input_batch.block_table.compute_slot_mapping(
            n, self.query_start_loc.gpu[: n + 1], self.positions[:tokens] - evicted.long()[owner]
        )

    def _adopt_pages(self, plan: CompactionPlan) -> None:
        """Replace the pages that vLLM's runner remembers of a compressed request."""
        pages = [*plan.kept, *plan.target]
        self.requests[plan.request_id].block_ids[0][:] = pages
        row = self.input_batch.req_id_to_index.get(plan.request_id)
        if row is not None:
            self.input_batch.block_table[0].add_row(pages, row)

    def _measure(self, budgeter: Budgeter) -> None:
        """Measure the requests that the step asked for."""
        if not self._message.measure:
            return
        ends = dict(zip(self._rows.request_ids, self._rows.start + self._rows.tokens, strict=True))
        block = self.input_batch.block_table[0].block_size
        for request_id, epoch in self._message.measure.items():
            position = int(ends[request_id])
            cached = position - self._message.evicted.get(request_id, 0)
            pages = self.requests[request_id].block_ids[0][: -(-cached // block)]
            report = budgeter.measure(request_id, epoch, position, cached, pages)
            if report is not None:
                self._reports[request_id] = report


def _managed(name: str, spec: KVCacheSpec) -> KVCacheSpec:
    """``spec`` under our manager.

    Raises:
        UnsupportedError: it is not plain full attention.
    """
    plain = type(spec) is FullAttentionSpec
    if not plain or spec.sliding_window or spec.attention_chunk_size or spec.non_causal:
        raise UnsupportedError(
            f"layer {name} has a {type(spec).__name__}, and growpage manages plain full attention "
            f"only; {REMEDY}"
        )
    return GrowPageSpec.of(spec)


def _attention_layers(runner: CPUModelRunner) -> dict[str, Any]:
    """The model's attention layers, all alike and all ours.

    Raises:
        UnsupportedError: they differ in shape, or one is attended to in a way that is not modelled.
    """
    layers = get_layers_from_vllm_config(runner.vllm_config, Attention)
    shapes = {
        (layer.num_heads, layer.num_kv_heads, layer.head_size, layer.impl.scale)
        for layer in layers.values()
    }
    if len(shapes) != 1:
        raise UnsupportedError(
            f"the model's attention layers differ in (heads, KV heads, head size, scale): "
            f"{sorted(shapes)}; growpage needs them alike; {REMEDY}"
        )
    for name, layer in layers.items():
        impl = layer.impl
        if not isinstance(impl, GrowPageCPUImpl):
            raise UnsupportedError(
                f"layer {name} runs {type(impl).__name__} instead of growpage's backend; "
                "check that the growpage plugin is loaded (VLLM_PLUGINS, if set, must name it)"
            )
        if impl.sinks is not None or impl.logits_soft_cap or impl.alibi_slopes is not None:
            raise UnsupportedError(
                f"layer {name} has attention sinks, a logit cap or ALiBi, which the eviction "
                f"scores do not model; {REMEDY}"
            )
        if impl.kv_sharing_target_layer_name is not None:
            raise UnsupportedError(f"layer {name} shares another layer's cache; {REMEDY}")
    return dict(layers)
