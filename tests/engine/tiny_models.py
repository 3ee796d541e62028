"""Tiny models with random weights, written to disk as a user's checkpoint would be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def tiny_model(
    folders: pytest.TempPathFactory,
    family: str,
    *,
    head_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    rope: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A model of a few layers and a vocabulary of 256; the same arguments give the same folder.

    Args:
        folders: where to write it.
        family: as transformers names its classes, such as ``Llama``.
        head_size, layers, heads, kv_heads: the shape of its attention.
        rope: ``rope_parameters``; the default rotation without.
        config: anything else of the family's configuration.
    """
    import transformers

    digest = hashlib.sha256(
        repr((family, head_size, layers, heads, kv_heads, rope, sorted(config.items()))).encode()
    ).hexdigest()
    folder = folders.getbasetemp() / f"{family.lower()}-{digest[:16]}"
    if not folder.exists():
        model_class = getattr(transformers, f"{family}ForCausalLM")
        shape = SHAPES.get(family, _usual)(head_size, layers, heads, kv_heads)
        if rope is not None:
            shape["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, **rope}
        settings = {
            "vocab_size": 256,
            # Large enough that attention is not uniform.
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **shape,
            **config,
        }
        torch.manual_seed(0)
        model_class(model_class.config_class(**settings)).save_pretrained(folder)
    return folder


def tiny_llama(folders: pytest.TempPathFactory, **shape: Any) -> Path:
    """A Llama whose hidden size is not that of its heads together."""
    return tiny_model(folders, "Llama", hidden_size=shape.get("heads", 4) * 32, **shape)


def _usual(head_size: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "head_dim": head_size,
        "hidden_size": heads * head_size,
        "intermediate_size": 256,
        "max_position_embeddings": 8192,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


def _gptj(head_size: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    assert heads == kv_heads, "GPT-J has no grouped queries"
    return {
        "n_embd": heads * head_size,
        "n_inner": 256,
        "n_positions": 8192,
        "n_layer": layers,
        "n_head": heads,
        "tie_word_embeddings": False,
    }


SHAPES: dict[str, Callable[[int, int, int, int], dict[str, Any]]] = {"GPTJ": _gptj}
"""How a family says its shape, where it is not as usual."""


def tiny_qwen2(folders: pytest.TempPathFactory, *, key_offset: float) -> Path:
    """A Qwen2 of two layers whose keys all have about ``key_offset`` added to some of their dims.

    As in real models of the family it is a bias, in the dims that RoPE turns least.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads, kv_heads, head_size = 4, 2, 64
    folder = folders.getbasetemp() / f"qwen2-{key_offset:g}"
    if not folder.exists():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=256,
                hidden_size=heads * head_size,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                max_position_embeddings=2048,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                initializer_range=0.06,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        slowest = [*range(24, 32), *range(56, 64)]
        for layer in model.model.layers:
            bias = torch.zeros(kv_heads, head_size)
            size = key_offset * (0.75 + 0.5 * torch.rand(kv_heads, len(slowest)))
            bias[:, slowest] = size * torch.randn_like(size).sign()
            layer.self_attn.k_proj.bias.data.copy_(bias.flatten())
        model.save_pretrained(folder)
    return folder
