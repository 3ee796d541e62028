"""The attention backend: vLLM's own kernels, between what we see of queries and do to keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from growpage.engine.calibration import CachelessAttention
from growpage.engine.checks import centres_keys, config_of_or_none
from growpage.engine.cpu_layout import EIGHT_BIT_DTYPES
from growpage.engine.tap import Tap
from growpage.kvcache.centre import KeyCentre
from growpage.kvcache.eight_bit import round_to_eight_bits


class GrowPageCPUImpl(CPUAttentionBackendImpl):
    """CPU attention that copies the queries worth remembering, and stores keys by their centre."""

    tap: Tap | None = None
    centre: KeyCentre | None = None
    """None: keys are stored as they are."""
    stand_in: CachelessAttention | None = None
    """Computes attention while the centre is calibrated."""

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
        if self.stand_in is not None:
            return self.stand_in.attend(query, key, value, output)
        if self.tap is not None:
            self.tap.record(query)
        if attn_metadata is None:
            # No batch: a warm-up or a probe. vLLM's would leave what memory held before.
            return output.zero_()
        return super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
        )

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """As vLLM's, before ``forward``, which reads all keys from the cache, the new ones too."""
        if self.centre is not None:
            key = self.centre.subtract_from(key)
            dtype = EIGHT_BIT_DTYPES[self.kv_cache_dtype]
            # A checkpoint may bring other scales, by which the kernel divides what it gets.
            if layer._k_scale_float == 1:
                key = round_to_eight_bits(key, dtype)
            if layer._v_scale_float == 1:
                value = round_to_eight_bits(value, dtype)
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)


class GrowPageCPUBackend(CPUAttentionBackend):
    """``CPU_ATTN`` with our part in it, if the engine being built needs one."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Ours if there is something to watch or to centre, vLLM's own otherwise."""
        vllm_config = get_current_vllm_config_or_none()
        config = config_of_or_none(vllm_config) if vllm_config else None
        if config is None or vllm_config is None:
            return CPUAttentionBackendImpl
        needed = config.policy != "full" or centres_keys(vllm_config)
        return GrowPageCPUImpl if needed else CPUAttentionBackendImpl
