"""The worker: vLLM's own, with our model runner."""

from __future__ import annotations

import sys

from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes

from growpage.engine.budgeted_runner import BudgetedRunner
from growpage.engine.budgeter import PlanError
from growpage.engine.checks import check_engine, check_pool

logger = init_logger(f"vllm.{__name__}")


class GrowPageCPUWorker(CPUWorker):
    """vLLM's CPU worker, with budgets in whichever model runner it was going to run."""

    def init_device(self) -> None:
        """Check what is supported, then set up the device and the runner."""
        check_engine(self.vllm_config)
        super().init_device()
        # CPUWorker builds its runner by name; ours takes its place before anything is loaded.
        self.model_runner = self._budgeted_runner()

    def determine_available_memory(self) -> int:
        """The bytes for the KV cache, once it is sure that the smallest capacity fits in them.

        Raises:
            ConfigError: it does not.
        """
        available: int = super().determine_available_memory()
        specs = self.get_kv_cache_spec().values()
        check_pool(available // sum(spec.page_size_bytes for spec in specs), self.vllm_config)
        return available

    def execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        """As vLLM's; if a compaction fails, the engine fails, whichever worker it was.

        vLLM looks at the errors of one worker only. Another one, whose pages are then not what the
        scheduler thinks, must not go on: its process ends, and vLLM stops the engine for that.
        """
        try:
            return super().execute_model(scheduler_output)
        except PlanError:
            if self.parallel_config.world_size == 1:
                raise
            logger.exception("growpage: worker %d stops the engine", self.rank)
            sys.exit(1)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """As vLLM's, whose warm-up may run steps that no scheduler has made."""
        with self.model_runner.warming_up():
            return super().compile_or_warm_up_model()

    def _budgeted_runner(self) -> BudgetedRunner:
        if self.use_v2_model_runner:  # imports Triton, so only where it is in use
            from growpage.engine.runner_v2 import GrowPageCPUModelRunnerV2

            return GrowPageCPUModelRunnerV2(self.vllm_config, self.device)
        from growpage.engine.runner import GrowPageCPUModelRunner

        return GrowPageCPUModelRunner(self.vllm_config, self.device)
