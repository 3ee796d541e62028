"""Model Runner V2: vLLM's own, seeing each request's cache as short as it physically is.

RoPE positions, the lengths that sampling compares, and request states stay logical. Slots are
computed from physical positions, and attention's metadata is built from physical lengths. Nothing
here waits for the device: what a step measures is read together with its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.sequence import IntermediateTensors
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu.model_runner import CPUModelRunner
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.interface import ModelState

from growpage.engine.budgeted_runner import BudgetedRunner, PendingAnswer
from growpage.engine.budgeter import StepRows
from growpage.engine.messages import ATTRIBUTE, CompactionPlan


class GrowPageModelRunnerV2(BudgetedRunner, GPUModelRunner):
    """vLLM's model runner (V2) with budgets."""

    model_state: Any

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, and let its attention see physical lengths."""
        super().load_model(load_dummy_weights)
        if self.budgeter is not None:
            self.model_state = PhysicalLengths(self.model_state, self.max_num_reqs, self.device)

    @torch.inference_mode()
    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        intermediate_tensors: IntermediateTensors | None = None,
        dummy_run: bool = False,
        **dummy: Any,
    ) -> ModelRunnerOutput | IntermediateTensors | None:
        """Compact what the step's plans say, run the step, and measure what it asks for."""
        if self.budgeter is None or dummy_run:
            return super().execute_model(
                scheduler_output, intermediate_tensors, dummy_run=dummy_run, **dummy
            )
        self._begin_step(self.budgeter, scheduler_output)
        self.model_state.evicted = self._message.evicted
        output = super().execute_model(scheduler_output, intermediate_tensors)
        self._end_step(self.budgeter, scheduler_output)
        return output

    def prepare_attn(self, input_batch: InputBatch) -> tuple[tuple[Tensor, ...], Tensor]:
        """vLLM's block tables and slots, the slots by physical position. Not for dummy runs."""
        if self.budgeter is not None:
            rows = StepRows(
                request_ids=tuple(input_batch.req_ids),
                start=input_batch.num_computed_tokens_np.astype(np.int64),
                tokens=input_batch.num_scheduled_tokens.astype(np.int64),
                prompt=self.req_states.prompt_len.np[input_batch.idx_mapping_np].astype(np.int64),
            )
            self._enter_rows(self.budgeter, rows)
            if self._message.evicted:
                evicted = evicted_tokens(self._message.evicted, rows.request_ids)
                per_token = np.repeat(evicted, rows.tokens)
                positions = input_batch.positions.clone()
                positions[: len(per_token)] -= async_tensor_h2d(per_token, self.device)
                input_batch = replace(input_batch, positions=positions)
        return super().prepare_attn(input_batch)

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> AsyncModelRunnerOutput | ModelRunnerOutput | None:
        """Sample, and send the answer along with the tokens."""
        output = super().sample_tokens(grammar_output)
        answer = None if self.budgeter is None else self._take_answer()
        return output if answer is None else AnsweredOutput(output, answer)

    def _adopt_pages(self, plan: CompactionPlan) -> None:
        row = self.req_states.req_id_to_index[plan.request_id]
        self.block_tables.append_block_ids(row, ([*plan.kept, *plan.target],), overwrite=True)

    def _page_tables(self, request_ids: Sequence[str], pages: int) -> Tensor:
        rows = [self.req_states.req_id_to_index[request_id] for request_id in request_ids]
        return self.block_tables.block_tables[0].gpu[rows, :pages].long()


class GrowPageCPUModelRunnerV2(GrowPageModelRunnerV2, CPUModelRunner):
    """vLLM's CPU model runner (V2) with budgets."""


class PhysicalLengths:
    """The model's state, with attention's metadata built from the lengths of requests in the cache.

    Stands in for the state that it wraps, and is that state in all other respects. vLLM's own
    lengths are left alone: the sampler, and the choice between prefill and decode, compare them.
    """

    def __init__(self, state: ModelState, max_requests: int, device: torch.device) -> None:
        self.evicted: Mapping[str, int] = {}
        """Tokens evicted so far from each request of the step that has lost any."""
        self._state = state
        # One buffer for good: a captured CUDA graph remembers its address.
        self._lengths = torch.zeros(max_requests, dtype=torch.int32, device=device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def prepare_attn(self, input_batch: InputBatch, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As vLLM's. A dummy batch has requests that nobody knows, and keeps its lengths."""
        lengths = self._lengths[: len(input_batch.seq_lens)].copy_(input_batch.seq_lens)
        bounds = input_batch.seq_lens_cpu_upper_bound
        if self.evicted:
            evicted = evicted_tokens(self.evicted, input_batch.req_ids)
            n = len(evicted)
            lengths[:n] -= async_tensor_h2d(evicted, lengths.device)
            bounds = bounds.clone()
            bounds[:n] -= torch.from_numpy(evicted)
        physical = replace(input_batch, seq_lens=lengths, seq_lens_cpu_upper_bound=bounds)
        return self._state.prepare_attn(physical, *args, **kwargs)


class AnsweredOutput(AsyncModelRunnerOutput):
    """vLLM's output of a step, with our answer.

    The measurements were enqueued before vLLM's own copies, which :meth:`get_output` waits for.
    """

    def __init__(self, output: AsyncModelRunnerOutput, answer: PendingAnswer) -> None:
        self._output = output
        self._answer = answer

    def get_output(self) -> ModelRunnerOutput:
        """The tokens and the answer, when the device has done the step."""
        output = self._output.get_output()
        setattr(output, ATTRIBUTE, self._answer.settle())
        return output


def evicted_tokens(evicted: Mapping[str, int], request_ids: Sequence[str]) -> np.ndarray:
    """``[n]`` tokens that each of the requests has lost."""
    return np.array([evicted.get(request_id, 0) for request_id in request_ids], dtype=np.int32)
