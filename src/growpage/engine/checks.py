"""What this release supports. Everything else is refused at start, in one sentence that helps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError
from growpage.engine import seams
from growpage.engine.errors import UnsupportedError
from growpage.engine.kwargs import CONFIG_KEY
from growpage.telemetry.settings import OPERATIONS_KEY, Operations

if TYPE_CHECKING:
    from vllm.config import VllmConfig

EIGHT_BIT_CACHES = ("fp8", "fp8_e4m3", "fp8_e5m2")
REMEDY = "serve it with plain vLLM, without growpage's --scheduler-cls and --worker-cls"


def config_of_or_none(vllm_config: VllmConfig) -> BudgetConfig | None:
    """The budget that the engine was given, or none if growpage is off.

    Raises:
        ConfigError: there is one, and it is not valid.
    """
    additional = vllm_config.additional_config
    settings = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
    return None if settings is None else BudgetConfig.of(settings)


def config_of(vllm_config: VllmConfig) -> BudgetConfig:
    """The budget that the engine was given; the defaults if only our classes were named.

    Raises:
        ConfigError: it is not valid.
    """
    return config_of_or_none(vllm_config) or BudgetConfig()


def operations_of(vllm_config: VllmConfig) -> Operations:
    """What the engine was asked for besides the budget.

    Raises:
        ConfigError: it is not valid.
    """
    return operations_in(vllm_config.additional_config)


def operations_in(additional: object) -> Operations:
    """The same, out of vLLM's ``--additional-config``.

    Raises:
        ConfigError: it is not valid.
    """
    settings = additional.get(OPERATIONS_KEY) if isinstance(additional, dict) else None
    return Operations.of(settings or {})


def centres_keys(vllm_config: VllmConfig) -> bool:
    """Whether the engine stores its keys relative to their centre.

    Raises:
        ConfigError: the budget is not valid.
    """
    return (
        vllm_config.cache_config.cache_dtype in EIGHT_BIT_CACHES
        and config_of(vllm_config).centre_keys
    )


def served_names(vllm_config: VllmConfig) -> frozenset[str]:
    """The names that the model is served under."""
    model = vllm_config.model_config
    served = model.served_model_name or model.model
    return frozenset([served] if isinstance(served, str) else served)


def check_engine(vllm_config: VllmConfig) -> None:
    """Refuse what is not supported, before a model is loaded.

    Raises:
        UnsupportedError: for the first reason found.
        ConfigError: the budget does not fit the engine's block size.
    """
    check_vllm()
    for refused in _refusals(vllm_config):
        raise UnsupportedError(refused)
    if vllm_config.use_v2_model_runner:
        _check_seams(seams.V2_CALLABLES)
    cache = vllm_config.cache_config
    # vLLM 0.33 chooses a block size only after this; the scheduler checks again with the final one.
    if cache.user_specified_block_size or installed_version() < (0, 33):
        config_of(vllm_config).for_block_size(cache.block_size)


def check_pool(pages: int, vllm_config: VllmConfig) -> None:
    """Refuse a pool of ``pages`` pages that cannot hold the smallest capacity of a request.

    Raises:
        ConfigError: with the numbers.
    """
    from growpage.budget.policies import make_policy  # it imports torch

    if operations_of(vllm_config).rollout is not None:
        return  # requests may be served as by plain vLLM, which checks the pool itself
    config = config_of(vllm_config)
    block = vllm_config.cache_config.block_size
    policy = make_policy(config, block)
    longest = -(-vllm_config.model_config.max_model_len // block)
    least = min(policy.least_pages(), longest)
    usable = pages - 1  # vLLM keeps one for itself
    if policy.compresses and usable < least:
        setting = "budget" if config.policy == "fixed" else "min_pages"
        raise ConfigError(
            f"the KV cache has room for {max(usable, 0)} pages of {block} tokens, but {setting} "
            f"asks for {least}; lower {setting}, or give the server more KV cache "
            "(--kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE)"
        )


def check_vllm() -> None:
    """Refuse a vLLM of another version, or one whose seams look otherwise than we expect.

    Raises:
        UnsupportedError: naming the version, or the method that differs.
    """
    found = vllm_version()
    if found is None:
        raise UnsupportedError("vLLM is not installed; install growpage with its extra [cpu]")
    version = installed_version()
    if version not in seams.SUPPORTED:
        wanted = " or ".join(".".join(map(str, supported)) for supported in seams.SUPPORTED)
        raise UnsupportedError(
            f"vLLM {found} is not supported; install vLLM {wanted}, or a growpage made for {found}"
        )
    _check_seams(seams.callables(version))


def _check_seams(expectations: Mapping[str, seams.Parameters]) -> None:
    """Refuse a vLLM whose methods are missing or take other parameters than we expect."""
    found = vllm_version()
    for path, expected in expectations.items():
        try:
            actual = tuple(inspect.signature(seams.resolve(path)).parameters)
        except (ModuleNotFoundError, AttributeError) as error:
            raise UnsupportedError(
                f"this vLLM {found} has no {path} ({error}), which growpage uses; "
                f"install an unmodified vLLM {found}"
            ) from None
        if actual != expected:
            raise UnsupportedError(
                f"{path} of this vLLM {found} takes ({', '.join(actual)}), but growpage expects "
                f"({', '.join(expected)}); install an unmodified vLLM {found}"
            )


def installed_version() -> seams.Version:
    """The installed vLLM, such as ``(0, 32)``; ``(0, 0)`` for none."""
    major, minor = (vllm_version() or "0.0").split(".")[:2]
    return int(major), int(minor)


def vllm_version() -> str | None:
    """The version of the vLLM that is installed under any of its names, or none."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _refusals(vllm_config: VllmConfig) -> Iterator[str]:
    """Why this engine cannot have a budget, one sentence each."""
    from vllm.platforms import current_platform

    model = vllm_config.model_config
    parallel = vllm_config.parallel_config
    cache = vllm_config.cache_config
    if not current_platform.is_cpu():
        yield (
            f"this release of growpage runs on vLLM's CPU build only, not on "
            f"{current_platform.device_name or 'this device'}; {REMEDY}"
        )
    if vllm_config.use_v2_model_runner:
        yield from _unsupported_v2(vllm_config)
    yield from (f"{what}; {REMEDY}" for what in _unsupported_model(model))
    for flag, size in (
        ("--pipeline-parallel-size", parallel.pipeline_parallel_size),
        ("--decode-context-parallel-size", parallel.decode_context_parallel_size),
        ("--prefill-context-parallel-size", parallel.prefill_context_parallel_size),
    ):
        if size > 1:
            yield f"{flag} {size} is not supported yet; use 1, and one server for each replica"
    if parallel.data_parallel_size > 1 and model.is_moe:
        yield (
            f"--data-parallel-size {parallel.data_parallel_size} is not supported for "
            "mixture-of-experts models yet; use 1, and one server for each replica"
        )
    if vllm_config.speculative_config is not None:
        yield "speculative decoding is not supported; leave out --speculative-config"
    if vllm_config.kv_transfer_config is not None:
        yield "KV connectors are not supported; leave out --kv-transfer-config"
    yield from _unsupported_cache(cache, model)
    if vllm_config.use_v2_model_runner and cache.cache_dtype in EIGHT_BIT_CACHES:
        yield (
            f"--kv-cache-dtype {cache.cache_dtype} is not supported with Model Runner V2 yet; "
            "set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if vllm_config.lora_config is not None and centres_keys(vllm_config):
        yield (
            f"--enable-lora with --kv-cache-dtype {cache.cache_dtype} is not supported yet, since "
            "centring has not been tested under adapters; set --growpage-centre-keys false"
        )
    if cache.kv_sharing_fast_prefill:
        yield "--kv-sharing-fast-prefill is not supported; leave it out"


def _unsupported_v2(vllm_config: VllmConfig) -> Iterator[str]:
    """What stands against Model Runner V2."""
    from vllm.triton_utils.importing import HAS_TRITON

    if not HAS_TRITON:
        yield (
            "Model Runner V2 needs Triton, which has no backend for this device; "
            "set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    graphs = vllm_config.compilation_config.cudagraph_mode
    if graphs is not None and graphs.has_full_cudagraphs():
        yield (
            f"cudagraph_mode {graphs.name} is not supported with Model Runner V2, since queries "
            "cannot be captured in a full graph yet; set it to PIECEWISE in --compilation-config"
        )


def _unsupported_cache(cache: Any, model: Any) -> Iterator[str]:
    """What of the cache's dtype is not supported."""
    dtype = cache.cache_dtype
    if dtype in EIGHT_BIT_CACHES:
        if cache.kv_cache_dtype_skip_layers:
            yield (
                f"--kv-cache-dtype-skip-layers {' '.join(cache.kv_cache_dtype_skip_layers)} is not "
                "supported: all layers must store their keys alike; leave it out"
            )
        if model.get_head_size() % 32:
            yield (
                f"--kv-cache-dtype {dtype} needs a head size that is a multiple of 32 on the CPU, "
                f"and this model's is {model.get_head_size()}; use auto"
            )
        if not has_eight_bit_kernel():
            yield f"--kv-cache-dtype {dtype} needs a CPU with AVX-512 or AMX; use auto"
    elif dtype not in ("auto", "bfloat16", "float16", "float32"):
        yield (
            f"--kv-cache-dtype {dtype} is not supported; use auto, or one of "
            f"{', '.join(EIGHT_BIT_CACHES)}"
        )


def has_eight_bit_kernel() -> bool:
    """Whether vLLM's CPU build has attention over 8-bit pages for this CPU."""
    import torch

    return torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()


def _unsupported_model(model: Any) -> Iterator[str]:
    """What of the model stands against a budget, as the start of a sentence."""
    name = model.served_model_name or model.model
    text = model.hf_text_config
    if model.runner_type != "generate":
        yield f"{name} is a {model.runner_type} model, and budgets are for generation"
        return
    if model.is_encoder_decoder:
        yield f"{name} is an encoder-decoder model, and its cross-attention cannot be compressed"
    if model.use_mla:
        yield f"{name} uses multi-head latent attention (MLA), which growpage cannot compress yet"
    if model.is_attention_free or model.is_hybrid or model.has_inner_state:
        yield f"{name} has recurrent (Mamba-like) layers, and budgets are for attention only"
    window = model.get_sliding_window()
    if window is not None:
        yield f"{name} uses sliding-window attention ({window} tokens), which bounds its cache"
    if getattr(text, "attention_chunk_size", None):
        yield f"{name} uses chunked local attention, which bounds its cache itself"
    if getattr(text, "attn_logit_softcapping", None):
        yield f"{name} caps its attention logits, which the eviction scores do not model yet"
    if model.uses_alibi:
        yield f"{name} uses ALiBi, whose biases need the positions that eviction removes"
    if model.uses_mrope or model.is_multimodal_model:
        yield f"{name} is a multimodal model, which has not been tested under eviction"
