"""GrowPage: on-demand KV-cache budgets for stock vLLM.

from vllm import LLM
import growpage

llm = LLM("Qwen/Qwen3-8B", **growpage.engine_kwargs(min_pages=8))
"""

from growpage._version import __version__
from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.engine.kwargs import engine_kwargs

__all__ = ["BudgetConfig", "ConfigError", "__version__", "engine_kwargs"]
