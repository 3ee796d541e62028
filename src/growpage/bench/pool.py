"""How large a page pool the demo gives the engine, in pages and in bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from growpage.bench.workload import DemoRequest

BLOCK_SIZE = 32
"""Tokens a page; vLLM's CPU attention wants a multiple of 32."""

FULL_SHARE = 5
"""The pool holds one in this many of the requests at their full length."""

POOL_FORMULA = f"ceil(sum over requests of ceil((prompt + max_new) / block) / {FULL_SHARE})"
"""What :func:`pool_pages` computes, as reports state it."""

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
"""What a model is served in, as vLLM calls it; ``auto`` is as its checkpoint is stored, but
bfloat16 where that is float32."""

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes a number."""

_AUTO = {"bfloat16": "bfloat16", "float16": "float16", "float32": "bfloat16"}
"""What ``auto`` makes of a checkpoint, with vLLM's CPU build on x86-64."""


def full_pages(request: DemoRequest, block_size: int = BLOCK_SIZE) -> int:
    """Pages that a request holds at its longest when nothing is evicted."""
    return -(-request.max_tokens // block_size)


def pool_pages(requests: Sequence[DemoRequest], block_size: int = BLOCK_SIZE) -> int:
    """Pages of a pool that full KV fills with about a fifth of the requests.

    Never less than the largest request needs alone: plain vLLM refuses to start otherwise.
    """
    needs = [full_pages(request, block_size) for request in requests]
    return max(-(-sum(needs) // FULL_SHARE), *needs)


def page_bytes(
    model: Path,
    block_size: int = BLOCK_SIZE,
    kv_cache_dtype: str = "auto",
    dtype: Dtype = "auto",
) -> int:
    """Bytes of one page over all layers: keys and values of ``block_size`` tokens.

    Args:
        model: a Hugging Face model's folder.
        block_size: tokens a page.
        kv_cache_dtype: vLLM's; ``auto`` is what the model is served in.
        dtype: what the model is served in.

    Raises:
        ValueError: the folder has no usable ``config.json``.
    """
    shape = model_shape(model, dtype)
    return (
        shape["layers"]
        * shape["kv_heads"]
        * block_size
        * 2  # a key and a value
        * shape["head_dim"]
        * _number_bytes(kv_cache_dtype, shape["dtype_bytes"])
    )


def _number_bytes(kv_cache_dtype: str, of_model: int) -> int:
    return 1 if kv_cache_dtype.startswith("fp8") else DTYPE_BYTES.get(kv_cache_dtype, of_model)


def served_dtype(config: Mapping[str, Any], dtype: Dtype) -> str:
    """What numbers a model with this ``config.json`` is served in.

    Raises:
        KeyError: the configuration does not say, or it is none that vLLM serves.
    """
    return _AUTO[config.get("dtype") or config["torch_dtype"]] if dtype == "auto" else dtype


def model_shape(model: Path, dtype: Dtype = "auto") -> dict[str, int]:
    """What decides the size of a page: layers, KV heads, head dimension, bytes a number.

    Raises:
        ValueError: the folder has no usable ``config.json``.
    """
    file = model / "config.json"
    try:
        config = json.loads(file.read_text())
        heads = config["num_attention_heads"]
        return {
            "layers": config["num_hidden_layers"],
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "dtype_bytes": DTYPE_BYTES[served_dtype(config, dtype)],
        }
    except OSError as error:
        raise ValueError(f"{model} is not a model's folder: cannot read {file.name}") from error
    except (KeyError, ValueError) as error:
        raise ValueError(f"cannot tell the size of a page from {file}: {error!r}") from error
