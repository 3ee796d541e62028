"""The KV cache spec that marks the layers whose capacity is managed.

Importing this module registers the spec with vLLM, as vLLM's own decorator does. It is imported
only where the plugin is switched on: by our model runner, and by unpickling what that runner sends.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry, register_kv_cache_spec

from growpage.engine.manager import GrowPageManager

# The registry takes any entry for a sign that the built-in specs are registered: those first.
KVCacheSpecRegistry._ensure_registered()


@register_kv_cache_spec(manager_class=GrowPageManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class GrowPageSpec(FullAttentionSpec):
    """Full attention whose requests hold as many tokens as their budget, not their length."""

    @classmethod
    def of(cls, spec: FullAttentionSpec) -> GrowPageSpec:
        """The same geometry under our manager."""
        return cls(**{f.name: getattr(spec, f.name) for f in fields(spec) if f.init})
