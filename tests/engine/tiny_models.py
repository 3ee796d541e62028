"""Tiny models with random weights, written to disk as a user's checkpoint would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


def tiny_llama(
    folders: pytest.TempPathFactory,
    *,
    head_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    **config: Any,
) -> Path:
    """A Llama of a few layers and a vocabulary of 256; the same arguments give the same folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(
        head_dim=head_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        **config,
    )
    folder = folders.getbasetemp() / ("llama-" + "-".join(map(str, shape.values())))
    if not folder.exists():
        torch.manual_seed(0)
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=heads * 32,
                intermediate_size=256,
                max_position_embeddings=8192,
                # Large enough that attention is not uniform.
                initializer_range=0.3,
                bos_token_id=None,
                eos_token_id=None,
                **shape,
            )
        ).save_pretrained(folder)
    return folder
