"""Entry point ``vllm.stat_logger_plugins``: takes the engines' reports out of vLLM's statistics.

vLLM makes one in each server process and tells it what each of its engines has to tell, beside its
own loggers, so labels and process layouts are vLLM's.
"""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from growpage.engine.checks import config_of_or_none, operations_of
from growpage.telemetry.exporter import Exporter
from growpage.telemetry.report import KEY, Report
from growpage.telemetry.summary import Summary

logger = init_logger(f"vllm.{__name__}")


class GrowPageStatLogger(AggregateStatLoggerBase):
    """Exports what engines with a budget report; does nothing where there is none."""

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        self.engine_index = 0  # vLLM's own loggers read it of each other
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
        """Nothing to say that the engine has not said."""
