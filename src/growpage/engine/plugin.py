"""Entry point ``vllm.general_plugins``: loaded by vLLM in every one of its processes."""

from __future__ import annotations


def register() -> None:
    """Offer our attention backend to vLLM.

    On the CPU vLLM always takes the backend called ``CPU_ATTN``, so that name is overridden. Ours
    hands out vLLM's own implementation unless the engine was configured with a budget.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "growpage.engine.backend.GrowPageCPUBackend")
