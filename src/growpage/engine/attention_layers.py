"""The model's attention layers: checked, and put under our management."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from growpage.engine.backend import GrowPageCPUImpl
from growpage.engine.checks import REMEDY
from growpage.engine.errors import UnsupportedError
from growpage.engine.spec import GrowPageSpec


def managed(name: str, spec: KVCacheSpec) -> KVCacheSpec:
    """``spec`` under our manager.

    Raises:
        UnsupportedError: it is not plain full attention.
    """
    plain = type(spec) is FullAttentionSpec
    if not plain or spec.sliding_window or spec.attention_chunk_size or spec.non_causal:
        raise UnsupportedError(
            f"layer {name} has a {type(spec).__name__}, and growpage manages plain full attention "
            f"only; {REMEDY}"
        )
    return GrowPageSpec.of(spec)


def attention_layers(vllm_config: VllmConfig) -> dict[str, Any]:
    """The model's attention layers, all alike and all ours.

    Raises:
        UnsupportedError: they differ in shape, or one is attended to in a way that is not modelled.
    """
    layers = get_layers_from_vllm_config(vllm_config, Attention)
    shapes = {
        (layer.num_heads, layer.num_kv_heads, layer.head_size, layer.impl.scale)
        for layer in layers.values()
    }
    if len(shapes) != 1:
        raise UnsupportedError(
            f"the model's attention layers differ in (heads, KV heads, head size, scale): "
            f"{sorted(shapes)}; growpage needs them alike; {REMEDY}"
        )
    for name, layer in layers.items():
        impl = layer.impl
        if not isinstance(impl, GrowPageCPUImpl):
            raise UnsupportedError(
                f"layer {name} runs {type(impl).__name__} instead of growpage's backend; "
                "check that the growpage plugin is loaded (VLLM_PLUGINS, if set, must name it)"
            )
        if impl.sinks is not None or impl.logits_soft_cap or impl.alibi_slopes is not None:
            raise UnsupportedError(
                f"layer {name} has attention sinks, a logit cap or ALiBi, which the eviction "
                f"scores do not model; {REMEDY}"
            )
        if impl.kv_sharing_target_layer_name is not None:
            raise UnsupportedError(f"layer {name} shares another layer's cache; {REMEDY}")
    return dict(layers)
