"""The KV cache spec that marks the layers whose capacity is managed.

Importing this module registers the spec with vLLM, as vLLM's own decorator does. It is imported
only where the plugin is switched on: by our model runner, and by unpickling what that runner sends.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry, register_kv_cache_spec

from growpage.budget.policies import make_policy
from growpage.engine.checks import config_of, operations_of
from growpage.engine.manager import GrowPageManager

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# The registry takes any entry for a sign that the built-in specs are registered: those first.
KVCacheSpecRegistry._ensure_registered()


@register_kv_cache_spec(manager_class=GrowPageManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class GrowPageSpec(FullAttentionSpec):
    """Full attention whose requests hold as many tokens as their budget, not their length."""

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """What the pool must hold at least: the smallest capacity, not ``max_model_len`` tokens."""
        longest = super().max_memory_usage_bytes(vllm_config)
        policy = make_policy(config_of(vllm_config), self.block_size)
        if not policy.compresses or operations_of(vllm_config).rollout is not None:
            return longest  # with a rollout, requests may have no budget at times
        return min(longest, policy.least_pages() * self.page_size_bytes)

    @classmethod
    def of(cls, spec: FullAttentionSpec) -> GrowPageSpec:
        """The same geometry under our manager."""
        return cls(**{f.name: getattr(spec, f.name) for f in fields(spec) if f.init})
