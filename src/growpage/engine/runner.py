"""Model Runner V1: vLLM's own, seeing each request's cache as short as it physically is.

RoPE positions and sampling stay logical; only lengths and slots that attention uses are physical.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from growpage.engine.budgeted_runner import BudgetedRunner
from growpage.engine.budgeter import StepRows
from growpage.engine.messages import ATTRIBUTE, CompactionPlan


class GrowPageCPUModelRunner(BudgetedRunner, CPUModelRunner):
    """vLLM's CPU model runner (V1) with budgets."""

    @torch.inference_mode()
    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        intermediate_tensors: IntermediateTensors | None = None,
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | IntermediateTensors | None:
        """Compact what the step's plans say, run the step, and measure what it asks for."""
        if self.budgeter is None:
            return super().execute_model(scheduler_output, intermediate_tensors)
        self._begin_step(self.budgeter, scheduler_output)
        output = super().execute_model(scheduler_output, intermediate_tensors)
        self._end_step(self.budgeter, scheduler_output)
        return output

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | IntermediateTensors:
        """Sample, and send the answer along with the tokens."""
        output = super().sample_tokens(grammar_output)
        answer = None if self.budgeter is None else self._take_answer()
        if answer is not None:
            carrier = getattr(output, "_model_runner_output", output)  # unwrap an async output
            setattr(carrier, ATTRIBUTE, answer.settle())
        return output

    def _prepare_inputs(
        self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray
    ) -> Any:
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        if self.budgeter is not None:
            batch, n = self.input_batch, self.input_batch.num_reqs
            rows = StepRows(
                request_ids=tuple(batch.req_ids[:n]),
                start=batch.num_computed_tokens_cpu[:n].astype(np.int64),
                tokens=num_scheduled_tokens.astype(np.int64),
                prompt=batch.num_prompt_tokens[:n].astype(np.int64),
            )
            self._enter_rows(self.budgeter, rows)
            if self._message.evicted:
                self._shorten(rows)
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
        pages = [*plan.kept, *plan.target]
        self.requests[plan.request_id].block_ids[0][:] = pages
        row = self.input_batch.req_id_to_index.get(plan.request_id)
        if row is not None:
            self.input_batch.block_table[0].add_row(pages, row)

    def _page_tables(self, request_ids: Sequence[str], pages: int) -> Tensor:
        tables = np.zeros((len(request_ids), pages), dtype=np.int64)
        for row, request_id in zip(tables, request_ids, strict=True):
            held = self.requests[request_id].block_ids[0][:pages]
            row[: len(held)] = held
        return torch.from_numpy(tables).to(self.device)
