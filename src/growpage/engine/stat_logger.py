"""Entry point ``vllm.stat_logger_plugins``: takes the engines' reports out of vLLM's statistics.

vLLM makes one in each server process and tells it what each of its engines has to tell, beside its
own loggers, so labels and process layouts are vLLM's.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from growpage.budget.rollout import UNSTAGED, Rollout
from growpage.engine.checks import config_of_or_none, operations_of
from growpage.engine.reporter import EngineFacts
from growpage.telemetry.exporter import Exporter
from growpage.telemetry.report import KEY, Report
from growpage.telemetry.summary import Summary

logger = init_logger(f"vllm.{__name__}")


class GrowPageStatLogger(AggregateStatLoggerBase):
    """Exports what engines with a budget report; does nothing where there is none."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self._vllm_config = vllm_config
        self._engines = engine_indexes
        self._exporter: Exporter | None = None
        self._summary = Summary()
        if config_of_or_none(vllm_config) is None or not operations_of(vllm_config).metrics:
            return
        served = vllm_config.model_config.served_model_name
        self._exporter = Exporter(served or vllm_config.model_config.model, engine_indexes)
        if vllm_config.observability_config.otlp_traces_endpoint is not None:
            from growpage.engine.tracing import read_figures_into_spans

            read_figures_into_spans()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Take the report out of an engine's statistics.

        It must not stay there: the field is for KV connectors, and vLLM's own loggers, which come
        after the plugins, would take it for theirs.
        """
        carried = scheduler_stats.kv_connector_stats if scheduler_stats else None
        if not carried or KEY not in carried:
            return
        assert scheduler_stats is not None
        scheduler_stats.kv_connector_stats = None
        report: Report = carried[KEY]
        if self._exporter is not None:
            self._exporter.record(engine_idx, report)
            self._summary.take(engine_idx, report)

    def log(self) -> None:
        """One line for each engine that has done something since the last one."""
        for line in self._summary.lines():
            logger.info(line)

    def log_engine_initialized(self) -> None:
        """Export what is known of the engines before they have worked."""
        if self._exporter is None:
            return
        cache = self._vllm_config.cache_config
        tokens = ((cache.num_gpu_blocks or 1) - 1) * cache.block_size  # vLLM keeps one page
        stage = operations_of(self._vllm_config).rollout
        mode = Rollout.from_file(stage).mode if stage else UNSTAGED.mode
        for engine in self._engines:
            for name, labels, value in EngineFacts.of(self._vllm_config).gauges(tokens, mode):
                self._exporter.set(engine, name, value, *labels)
