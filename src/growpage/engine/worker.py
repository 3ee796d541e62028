"""The worker: vLLM's own, with our model runner."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from growpage.engine.checks import check_engine, check_pool
from growpage.engine.runner import GrowPageCPUModelRunner


class GrowPageCPUWorker(CPUWorker):
    """vLLM's CPU worker, running :class:`GrowPageCPUModelRunner`."""

    def init_device(self) -> None:
        """Check what is supported, then set up the device and the runner."""
        check_engine(self.vllm_config)
        super().init_device()
        # CPUWorker builds its runner by name; ours takes its place before anything is loaded.
        self.model_runner = GrowPageCPUModelRunner(self.vllm_config, self.device)

    def determine_available_memory(self) -> int:
        """The bytes for the KV cache, once it is sure that the smallest capacity fits in them.

        Raises:
            ConfigError: it does not.
        """
        available: int = super().determine_available_memory()
        specs = self.get_kv_cache_spec().values()
        check_pool(available // sum(spec.page_size_bytes for spec in specs), self.vllm_config)
        return available
