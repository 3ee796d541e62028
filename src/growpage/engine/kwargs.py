"""How the plugin is switched on: the arguments that vLLM is started with."""

from __future__ import annotations

from typing import Any

from growpage.budget.config import BudgetConfig

SCHEDULER = "growpage.engine.scheduler.GrowPageScheduler"
ASYNC_SCHEDULER = "growpage.engine.scheduler.GrowPageAsyncScheduler"
WORKER = "growpage.engine.worker.GrowPageCPUWorker"
CONFIG_KEY = "growpage"


def engine_kwargs(config: BudgetConfig | None = None, **settings: Any) -> dict[str, Any]:
    """Keyword arguments for ``vllm.LLM`` or ``EngineArgs`` that put a budget on every request.

        llm = LLM(model, **growpage.engine_kwargs(policy="fixed", budget=512))

    Args:
        config: a ready configuration; ``settings`` override its fields.
        settings: fields of :class:`BudgetConfig`.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    chosen = config.model_dump(exclude_unset=True) if config else {}
    checked = BudgetConfig.of({**chosen, **settings})
    return {
        "scheduler_cls": SCHEDULER,
        "worker_cls": WORKER,
        "additional_config": {CONFIG_KEY: checked.model_dump(exclude_unset=True)},
    }
