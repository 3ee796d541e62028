"""The attention backend: vLLM's own kernels, and a tap on the queries that they see."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from growpage.engine.checks import config_of_or_none
from growpage.engine.tap import Tap


class GrowPageCPUImpl(CPUAttentionBackendImpl):
    """CPU attention that copies the queries worth remembering before it runs."""

    tap: Tap | None = None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """As vLLM's; ``query`` is ``[tokens, heads, dim]``, after RoPE."""
        if self.tap is not None:
            self.tap.record(query)
        if attn_metadata is None:
            # No batch: a warm-up or a probe. vLLM's would leave what memory held before.
            return output.zero_()
        return super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
        )


class GrowPageCPUBackend(CPUAttentionBackend):
    """``CPU_ATTN`` with the tap, if the engine being built has a budget that may compress."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Ours if there is something to watch, vLLM's own otherwise."""
        vllm_config = get_current_vllm_config_or_none()
        config = config_of_or_none(vllm_config) if vllm_config else None
        watched = config is not None and config.policy != "full"
        return GrowPageCPUImpl if watched else CPUAttentionBackendImpl
