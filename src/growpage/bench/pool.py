"""How large a page pool the demo gives the engine, in pages and in bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from growpage.bench.workload import DemoRequest

BLOCK_SIZE = 32
"""Tokens a page; vLLM's CPU attention wants a multiple of 32."""

FULL_SHARE = 5
"""The pool holds one in this many of the requests at their full length."""

POOL_FORMULA = f"ceil(sum over requests of ceil((prompt + max_new) / block) / {FULL_SHARE})"
"""What :func:`pool_pages` computes, as reports state it."""

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 2}
"""Bytes a number, by the dtype of a checkpoint: vLLM serves one in float32 in 16 bits."""


def full_pages(request: DemoRequest, block_size: int = BLOCK_SIZE) -> int:
    """Pages that a request holds at its longest when nothing is evicted."""
    return -(-request.max_tokens // block_size)


def pool_pages(requests: Sequence[DemoRequest], block_size: int = BLOCK_SIZE) -> int:
    """Pages of a pool that full KV fills with about a fifth of the requests.

    Never less than the largest request needs alone: plain vLLM refuses to start otherwise.
    """
    needs = [full_pages(request, block_size) for request in requests]
    return max(-(-sum(needs) // FULL_SHARE), *needs)


def page_bytes(model: Path, block_size: int = BLOCK_SIZE, kv_cache_dtype: str = "auto") -> int:
    """Bytes of one page over all layers: keys and values of ``block_size`` tokens.

    Args:
        model: a Hugging Face model's folder.
        block_size: tokens a page.
        kv_cache_dtype: vLLM's; ``auto`` is the model's own.

    Raises:
        ValueError: the folder has no usable ``config.json``.
    """
    shape = model_shape(model)
    return (
        shape["layers"]
        * shape["kv_heads"]
        * block_size
        * 2  # a key and a value
        * shape["head_dim"]
        * (1 if kv_cache_dtype.startswith("fp8") else shape["dtype_bytes"])
    )


def model_shape(model: Path) -> dict[str, int]:
    """What decides the size of a page: layers, KV heads, head dimension, bytes a number.

    Raises:
        ValueError: the folder has no usable ``config.json``.
    """
    file = model / "config.json"
    try:
        config = json.loads(file.read_text())
        heads = config["num_attention_heads"]
        dtype = config.get("dtype") or config["torch_dtype"]
        return {
            "layers": config["num_hidden_layers"],
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
            "dtype_bytes": DTYPE_BYTES[dtype],
        }
    except OSError as error:
        raise ValueError(f"{model} is not a model's folder: cannot read {file.name}") from error
    except (KeyError, ValueError) as error:
        raise ValueError(f"cannot tell the size of a page from {file}: {error!r}") from error
