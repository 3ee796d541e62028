"""Finding the centre of a model's keys before it serves, or taking the stored one.

Runs when the model is loaded and before it has a KV cache, so that nothing of it can stay in a
page. Attention is computed exactly and without a cache meanwhile: an 8-bit one would ruin the very
keys that are to be measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.tokenizers.registry import cached_tokenizer_from_config

from growpage.cache_folder import cache_folder
from growpage.engine.calibration_texts import TEXTS
from growpage.kvcache.centre import KeyCentre, KeyMean
from growpage.kvcache.centre_file import CentreFile, CentreFileError

logger = init_logger(__name__)


def centre_keys(model: torch.nn.Module, vllm_config: VllmConfig, layers: Mapping[str, Any]) -> None:
    """Give each of the attention ``layers``, all alike, the centre that its keys are stored by.

    Every rank of tensor parallelism must call this: each finds the centre of its own KV heads.
    """
    first = next(iter(layers.values()))
    shape = (len(layers), first.num_kv_heads, first.head_size)
    prompts = calibration_prompts(vllm_config)
    file = _centre_file(vllm_config, prompts, shape)
    centre = _read(file)
    # A forward pass takes all ranks, so that either all of them calibrate or none.
    if not _on_all_ranks(centre is not None):
        started = perf_counter()
        centre = calibrate(model, vllm_config, list(layers.values()), prompts)
        tokens = sum(len(prompt.tokens) for prompt in prompts)
        logger.info(
            "growpage: calibrated the centre of the keys on %d tokens in %.1f s",
            tokens,
            perf_counter() - started,
        )
        _write(file, centre)
    assert centre is not None
    centre = centre.to(device=next(model.parameters()).device, dtype=first.dtype)
    for layer, vector in zip(layers.values(), centre, strict=True):
        layer.impl.centre = KeyCentre()
        layer.impl.centre.set(vector)


@dataclass(frozen=True)
class CalibrationPrompt:
    """What the model reads in one forward pass."""

    tokens: tuple[int, ...]
    start: int
    """Position of the first token."""


def calibration_prompts(vllm_config: VllmConfig) -> list[CalibrationPrompt]:
    """The built-in texts for this model, each at other positions.

    RoPE turns what all keys have in common slowly with the position, so the texts start at
    positions from nothing to half of the longest context, in growing distances: most contexts are
    short. What a text says at a position does not depend on where it starts.
    """
    model: ModelConfig = vllm_config.model_config
    context = model.max_model_len
    most = min(context // 2, vllm_config.scheduler_config.max_num_batched_tokens)
    starts = (0, context // 64, context // 8, context // 2)
    return [
        CalibrationPrompt(tuple(_tokenize(model, text)[:most]), start)
        for text, start in zip(TEXTS, starts, strict=True)
    ]


def calibrate(
    model: torch.nn.Module,
    vllm_config: VllmConfig,
    layers: Sequence[Any],
    prompts: Sequence[CalibrationPrompt],
) -> Tensor:
    """The mean of each layer's keys over all tokens of ``prompts``.

    Returns:
        ``[layers, kv_heads, dim]`` in float32.
    """
    with _watched(layers) as stand_ins, torch.inference_mode():
        device = next(model.parameters()).device
        for prompt in prompts:
            tokens = torch.tensor(prompt.tokens, device=device)
            positions = torch.arange(prompt.start, prompt.start + len(tokens), device=device)
            # Without attention metadata vLLM writes no cache; not compiled, as nothing is yet.
            with set_forward_context(None, vllm_config, num_tokens=len(tokens), skip_compiled=True):
                model(
                    input_ids=tokens,
                    positions=positions,
                    intermediate_tensors=None,
                    inputs_embeds=None,
                )
    return torch.stack([stand_in.keys.read() for stand_in in stand_ins])


class CachelessAttention:
    """Stands in for a layer's kernel: exact causal attention over one prompt, and no cache."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.keys = KeyMean()

    def attend(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> Tensor:
        """Fill ``output`` from ``[tokens, heads, dim]`` each, and take note of the keys."""
        self.keys.add(key)
        queries, keys, values = (
            part.float().transpose(0, 1).unsqueeze(0) for part in (query, key, value)
        )
        result = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=self.scale, enable_gqa=True
        )
        output.copy_(result[0].transpose(0, 1))
        return output


@contextmanager
def _watched(layers: Sequence[Any]) -> Iterator[list[CachelessAttention]]:
    stand_ins = [CachelessAttention(layer.impl.scale) for layer in layers]
    for layer, stand_in in zip(layers, stand_ins, strict=True):
        layer.impl.stand_in = stand_in
    try:
        yield stand_ins
    finally:
        for layer in layers:
            layer.impl.stand_in = None


def _tokenize(model: ModelConfig, text: str) -> list[int]:
    tokenizer = cached_tokenizer_from_config(model)
    if tokenizer is not None:
        tokens: list[int] = tokenizer.encode(text)
        return tokens
    # Served without one: any tokens tell what all keys have in common.
    size = model.get_vocab_size()
    return [byte % size for byte in text.encode()]


# ---- the stored centre ---------------------------------------------------------------------------


def _centre_file(
    vllm_config: VllmConfig, prompts: Sequence[CalibrationPrompt], shape: tuple[int, int, int]
) -> CentreFile | None:
    """Where this centre is stored; none if there is no folder for it."""
    try:
        folder = cache_folder() / "centres"
    except RuntimeError:
        logger.warning("growpage: no folder to keep the centre of the keys in; set XDG_CACHE_HOME")
        return None
    return CentreFile(folder, _identity(vllm_config, prompts), shape)


def _identity(vllm_config: VllmConfig, prompts: Sequence[CalibrationPrompt]) -> dict[str, str]:
    """All that the centre depends on."""
    model: ModelConfig = vllm_config.model_config
    ranks = get_tp_group()
    return {
        "model": model.model,
        "revision": str(getattr(model.hf_config, "_commit_hash", None) or model.revision),
        "weights": _digest(_weight_files(Path(model.model))),
        "load_format": str(vllm_config.load_config.load_format),
        "config": _digest(model.hf_text_config.to_dict()),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "statistic": "mean",
        "prompts": _digest([(prompt.start, prompt.tokens) for prompt in prompts]),
        "rank": f"{ranks.rank_in_group} of {ranks.world_size}",
    }


def _weight_files(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of each weight file of a model on the disk: they change with it."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.suffix in (".safetensors", ".bin", ".pt", ".gguf"):
            status = path.stat()
            found.append((path.name, status.st_size, status.st_mtime_ns))
    return found


def _digest(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read(file: CentreFile | None) -> Tensor | None:
    try:
        return file.read() if file is not None else None
    except CentreFileError as error:
        logger.warning("growpage: %s; it is calibrated again and replaced", error)
        return None


def _write(file: CentreFile | None, centre: Tensor) -> None:
    try:
        if file is not None:
            file.write(centre)
    except CentreFileError as error:
        logger.warning("growpage: %s; the next start calibrates again", error)


def _on_all_ranks(flag: bool) -> bool:
    ranks = get_tp_group()
    if ranks.world_size == 1:
        return flag
    votes = torch.tensor(int(flag))
    torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN, group=ranks.cpu_group)
    return bool(votes)
