"""The seams: every method of vLLM that growpage overrides or calls, with the parameters expected.

This is data and imports nothing of vLLM. It is compared with the installed vLLM at start, and in
the tests with snapshots of every supported version, which `make seams` takes from vLLM's source.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

Version = tuple[int, int]
Parameters = tuple[str, ...]

SUPPORTED: tuple[Version, ...] = ((0, 32), (0, 33))

_MANAGER = "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_RUNNER = "vllm.v1.worker.cpu_model_runner:CPUModelRunner"
_WORKER = "vllm.v1.worker.cpu_worker:CPUWorker"
_ATTENTION = "vllm.v1.attention.backends.cpu_attn"

CALLABLES: dict[str, Parameters] = {
    # ---- overridden --------------------------------------------------------------------------
    f"{_MANAGER}.get_num_blocks_to_allocate": (
        "self",
        "request_id",
        "num_tokens",
        "new_computed_blocks",
        "total_computed_tokens",
        "num_local_computed_tokens",
        "num_tokens_main_model",
        "apply_admission_cap",
        "prefill_end",
    ),
    f"{_MANAGER}.allocate_new_blocks": (
        "self",
        "request_id",
        "num_tokens",
        "num_tokens_main_model",
    ),
    f"{_MANAGER}.cache_blocks": (
        "self",
        "request",
        "num_tokens",
        "retention_interval",
        "replay_boundaries",
    ),
    f"{_MANAGER}.pop_blocks_for_free": ("self", "request_id"),
    f"{_SCHEDULER}.schedule": ("self", "throttle_prefills"),
    f"{_SCHEDULER}.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{_SCHEDULER}.add_request": ("self", "request"),
    f"{_SCHEDULER}._reserve_prefill_lookahead": (
        "self",
        "request",
        "num_computed_tokens",
        "num_new_tokens",
    ),
    f"{_SCHEDULER}._preempt_request": ("self", "request", "timestamp", "drop_stale_output"),
    f"{_SCHEDULER}._free_request": ("self", "request", "delay_free_blocks"),
    f"{_SCHEDULER}.make_stats": (
        "self",
        "spec_decoding_stats",
        "kv_connector_stats",
        "cudagraph_stats",
        "perf_stats",
        "ec_connector_stats",
    ),
    "vllm.v1.metrics.loggers:AggregateStatLoggerBase.__init__": (
        "self",
        "vllm_config",
        "engine_indexes",
    ),
    "vllm.v1.metrics.loggers:StatLoggerBase.record": (
        "self",
        "scheduler_stats",
        "iteration_stats",
        "mm_cache_stats",
        "engine_idx",
    ),
    # The mixin stands before either scheduler.
    f"{_ASYNC_SCHEDULER}.schedule": ("self", "throttle_prefills"),
    f"{_ASYNC_SCHEDULER}.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    f"{_WORKER}.init_device": ("self",),
    f"{_WORKER}.determine_available_memory": ("self",),
    f"{_WORKER}.execute_model": ("self", "scheduler_output"),
    f"{_RUNNER}.load_model": ("self", "load_dummy_weights"),
    f"{_RUNNER}.initialize_kv_cache": (
        "self",
        "kv_cache_config",
        "is_profiling",
        "kv_cache_allocation_context",
    ),
    f"{_RUNNER}.get_kv_cache_spec": ("self",),
    f"{_RUNNER}.execute_model": ("self", "scheduler_output", "intermediate_tensors"),
    f"{_RUNNER}.sample_tokens": ("self", "grammar_output"),
    f"{_RUNNER}._prepare_inputs": ("self", "scheduler_output", "num_scheduled_tokens"),
    f"{_ATTENTION}:CPUAttentionBackend.get_impl_cls": (),
    f"{_ATTENTION}:CPUAttentionBackendImpl.forward": (
        "self",
        "layer",
        "query",
        "key",
        "value",
        "kv_cache",
        "attn_metadata",
        "output",
        "output_scale",
        "output_block_scale",
    ),
    f"{_ATTENTION}:CPUAttentionBackendImpl.do_kv_cache_update": (
        "self",
        "layer",
        "key",
        "value",
        "kv_cache",
        "slot_mapping",
    ),
    "vllm.v1.kv_cache_interface:FullAttentionSpec.max_memory_usage_bytes": ("self", "vllm_config"),
    # ---- called ------------------------------------------------------------------------------
    "vllm.v1.metrics.prometheus:get_prometheus_registry": (),
    "vllm.plugins.endpoint_plugins.interface:EndpointPlugin.attach_router": ("self", "app"),
    "vllm.plugins.endpoint_plugins.interface:EndpointPlugin.init_state": (
        "self",
        "engine_client",
        "state",
        "args",
    ),
    f"{_RUNNER}.__init__": ("self", "vllm_config", "device"),
    f"{_SCHEDULER}.finish_requests": ("self", "request_ids", "finished_status"),
    "vllm.v1.core.kv_cache_manager:KVCacheManager.truncate_computed_blocks": (
        "self",
        "blocks",
        "num_computed_tokens",
    ),
    f"{_POOL}.is_block_writable": ("self", "block"),
    f"{_POOL}._maybe_evict_cached_block": ("self", "block"),
    f"{_POOL}.get_new_blocks": ("self", "num_blocks"),
    f"{_POOL}.free_blocks": ("self", "ordered_blocks"),
    f"{_POOL}.get_num_free_blocks": ("self",),
    "vllm.v1.worker.block_table:BlockTable.add_row": ("self", "block_ids", "row_idx"),
    "vllm.v1.worker.block_table:MultiGroupBlockTable.compute_slot_mapping": (
        "self",
        "num_reqs",
        "query_start_loc",
        "positions",
    ),
    "vllm.v1.kv_cache_spec_registry:KVCacheSpecRegistry._ensure_registered": ("vllm_config",),
    "vllm.v1.kv_cache_spec_registry:register_kv_cache_spec": (
        "manager_class",
        "uniform_type_base_spec",
    ),
    "vllm.v1.attention.backends.registry:register_backend": (
        "backend",
        "class_path",
        "is_mamba",
    ),
    f"{_ATTENTION}:_get_attn_isa": ("dtype", "block_size", "head_size", "kv_cache_dtype"),
    "vllm._custom_ops:cpu_attn_reshape_and_cache": (
        "key",
        "value",
        "key_cache",
        "value_cache",
        "slot_mapping",
        "isa",
        "k_scale",
        "v_scale",
        "kv_cache_dtype",
    ),
    "vllm.config:get_current_vllm_config_or_none": (),
    "vllm.config:get_layers_from_vllm_config": ("vllm_config", "layer_type", "layer_names"),
    "vllm.distributed.parallel_state:get_tp_group": (),
    "vllm.tokenizers.registry:cached_tokenizer_from_config": ("model_config", "kwargs"),
    "vllm.config.model:ModelConfig.get_head_size": ("self",),
    "vllm.config.model:ModelConfig.get_vocab_size": ("self",),
    "vllm.forward_context:set_forward_context": (
        "attn_metadata",
        "vllm_config",
        "num_tokens",
        "num_tokens_across_dp",
        "cudagraph_runtime_mode",
        "batch_descriptor",
        "ubatch_slices",
        "slot_mapping",
        "skip_compiled",
        "is_padding",
    ),
}
"""Methods and functions by their path, which are alike in all supported versions."""

_V2 = "vllm.v1.worker.gpu"

V2_CALLABLES: dict[str, Parameters] = {
    f"{_V2}.model_runner:GPUModelRunner.load_model": (
        "self",
        "load_dummy_weights",
        "args",
        "model",
        "kwargs",
    ),
    f"{_V2}.model_runner:GPUModelRunner.initialize_kv_cache": (
        "self",
        "kv_cache_config",
        "is_profiling",
        "kv_cache_allocation_context",
    ),
    f"{_V2}.model_runner:GPUModelRunner.get_kv_cache_spec": ("self",),
    f"{_V2}.model_runner:GPUModelRunner.execute_model": (
        "self",
        "scheduler_output",
        "intermediate_tensors",
        "dummy_run",
        "skip_attn_for_dummy_run",
        "is_profile",
        "context_len",
        "valid_dummy_state_slots",
        "randomize_inputs",
    ),
    f"{_V2}.model_runner:GPUModelRunner.prepare_attn": ("self", "input_batch"),
    f"{_V2}.model_runner:GPUModelRunner.sample_tokens": ("self", "grammar_output"),
    f"{_V2}.async_utils:AsyncOutput.get_output": ("self",),
    f"{_V2}.block_table:BlockTables.append_block_ids": (
        "self",
        "req_index",
        "new_block_ids",
        "overwrite",
    ),
    f"{_V2}.model_states.default:DefaultModelState.prepare_attn": (
        "self",
        "input_batch",
        "cudagraph_mode",
        "block_tables",
        "slot_mappings",
        "attn_groups",
        "kv_cache_config",
        "for_capture",
        "ubatch_idx",
        "model_specific_attn_metadata",
    ),
}
"""Of Model Runner V2, compared only where it is in use: its modules import Triton."""

CHANGED: dict[str, dict[Version, Parameters]] = {
    f"{_SCHEDULER}._get_local_prefix_cache_hit": {
        (0, 32): ("self", "request"),
        (0, 33): ("self", "request", "max_cache_hit_length"),
    },
}
"""Those that are not; what overrides them takes either."""

MAKE_ARG_PARSER: dict[Version, str] = {
    (0, 32): "vllm.entrypoints.launchers.cli_args:make_arg_parser",
    (0, 33): "vllm.entrypoints.common.cli_args:make_arg_parser",
}
CLI_ENV_SETUP: dict[Version, str] = {
    (0, 32): "vllm.entrypoints.serve.utils.api_utils:cli_env_setup",
    (0, 33): "vllm.entrypoints.common.startup:cli_env_setup",
}
"""Functions that have moved. Only the server needs them, and they are slow to import."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    f"{_MANAGER}": ("block_pool", "block_size", "req_to_blocks"),
    f"{_POOL}": ("blocks", "num_gpu_blocks"),
    "vllm.v1.core.kv_cache_utils:KVCacheBlock": ("block_id", "ref_cnt", "block_hash"),
    "vllm.v1.core.kv_cache_manager:KVCacheManager": ("coordinator", "watermark_blocks"),
    "vllm.v1.core.kv_cache_manager:KVCacheBlocks": ("blocks",),
    "vllm.v1.core.kv_cache_coordinator:UnitaryKVCacheCoordinator": ("single_type_managers",),
    f"{_SCHEDULER}": (
        "kv_cache_manager",
        "max_model_len",
        "max_num_running_reqs",
        "pause_state",
        "requests",
        "running",
        "vllm_config",
        "waiting",
    ),
    "vllm.v1.core.sched.request_queue:RequestQueue": ("peek_request",),
    "vllm.v1.engine:EngineCoreOutput": (
        "finish_reason",
        "new_token_ids",
        "request_id",
        "stop_reason",
    ),
    "vllm.v1.engine:EngineCoreOutputs": ("outputs",),
    "vllm.v1.request:Request": (
        "arrival_time",
        "client_index",
        "get_finished_reason",
        "lora_request",
        "max_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "request_id",
        "sampling_params",
        "status",
        "trace_headers",
    ),
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "finished_req_ids",
        "num_scheduled_tokens",
        "preempted_req_ids",
        "scheduled_cached_reqs",
        "scheduled_new_reqs",
        "total_num_scheduled_tokens",
    ),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "num_computed_tokens",
        "req_ids",
        "resumed_req_ids",
    ),
    "vllm.v1.core.sched.output:NewRequestData": ("req_id",),
    f"{_RUNNER}": (
        "device",
        "dtype",
        "input_batch",
        "max_model_len",
        "max_num_reqs",
        "model",
        "optimistic_seq_lens_cpu",
        "positions",
        "query_start_loc",
        "req_indices",
        "requests",
        "seq_lens",
        "vllm_config",
    ),
    "vllm.v1.worker.gpu_input_batch:InputBatch": (
        "block_table",
        "num_computed_tokens_cpu",
        "num_prompt_tokens",
        "num_reqs",
        "req_id_to_index",
        "req_ids",
    ),
    "vllm.v1.worker.gpu_input_batch:CachedRequestState": ("block_ids",),
    "vllm.v1.worker.block_table:BlockTable": ("block_size",),
    "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput": ("_model_runner_output",),
    "vllm.v1.kv_cache_interface:FullAttentionSpec": (
        "attention_chunk_size",
        "block_size",
        "non_causal",
        "sliding_window",
    ),
    "vllm.v1.kv_cache_interface:KVCacheConfig": ("kv_cache_groups",),
    "vllm.v1.kv_cache_interface:KVCacheGroupSpec": ("kv_cache_spec",),
    "vllm.model_executor.layers.attention:Attention": (
        "dtype",
        "head_size",
        "impl",
        "kv_cache",
        "kv_cache_dtype",
        "num_heads",
        "num_kv_heads",
    ),
    f"{_ATTENTION}:CPUAttentionBackendImpl": (
        "alibi_slopes",
        "kv_cache_dtype",
        "kv_sharing_target_layer_name",
        "logits_soft_cap",
        "scale",
        "sinks",
    ),
    "vllm.model_executor.layers.rotary_embedding:RotaryEmbedding": (
        "cos_sin_cache",
        "is_neox_style",
    ),
    "vllm.model_executor.layers.rotary_embedding:Phi3LongRoPEScaledRotaryEmbedding": (
        "long_short_cos_sin_cache",
        "original_max_position_embeddings",
        "use_long_rope",
    ),
    "vllm.distributed.parallel_state:GroupCoordinator": (
        "cpu_group",
        "device_group",
        "rank_in_group",
        "world_size",
    ),
    "vllm.config.cache:CacheConfig": (
        "block_size",
        "cache_dtype",
        "kv_cache_dtype_skip_layers",
        "kv_cache_size_tokens",
        "kv_sharing_fast_prefill",
        "num_gpu_blocks",
        "user_specified_block_size",
    ),
    "vllm.config.vllm:VllmConfig": (
        "additional_config",
        "cache_config",
        "kv_transfer_config",
        "load_config",
        "lora_config",
        "model_config",
        "observability_config",
        "parallel_config",
        "scheduler_config",
        "speculative_config",
        "use_v2_model_runner",
    ),
    "vllm.config.load:LoadConfig": ("load_format",),
    "vllm.config.observability:ObservabilityConfig": ("otlp_traces_endpoint",),
    "vllm.v1.metrics.stats:SchedulerStats": (
        "kv_connector_stats",
        "num_running_reqs",
        "num_waiting_reqs",
    ),
    "vllm.config.scheduler:SchedulerConfig": ("max_num_batched_tokens", "max_num_seqs"),
    "vllm.config.model:ModelConfig": (
        "dtype",
        "get_sliding_window",
        "has_inner_state",
        "hf_config",
        "hf_text_config",
        "is_attention_free",
        "is_encoder_decoder",
        "is_hybrid",
        "is_moe",
        "is_multimodal_model",
        "max_model_len",
        "model",
        "quantization",
        "revision",
        "runner_type",
        "served_model_name",
        "use_mla",
        "uses_alibi",
        "uses_mrope",
    ),
    "vllm.config.parallel:ParallelConfig": (
        "data_parallel_index",
        "data_parallel_size",
        "decode_context_parallel_size",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "tensor_parallel_size",
    ),
}
"""What is read of vLLM's objects, by class. Only the tests look at it: instances are not there yet
when an engine starts."""


def callables(version: Version) -> dict[str, Parameters]:
    """What an engine under ``version`` overrides or calls."""
    return {**CALLABLES, **{path: versions[version] for path, versions in CHANGED.items()}}


def resolve(path: str) -> Any:
    """The object at ``path``, as in ``package.module:Class.method``.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, name = path.partition(":")
    return reduce(getattr, name.split("."), import_module(module))
