"""A real vLLM engine in this process, and the parts of it that tests look into."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PAGE = 32
NO_EIGHT_BIT_KERNEL = "vLLM has no attention over 8-bit pages for this CPU"
Prompt = str | list[int]


def has_eight_bit_pages(settings: Mapping[str, Any]) -> bool:
    """Whether an engine with these settings has an 8-bit cache."""
    return str(settings.get("kv_cache_dtype", "auto")).startswith("fp8")


def prompt_of(tokens: int, seed: int = 0) -> list[int]:
    """A prompt for the tiny models, whose vocabulary is 256; unlike that of any other seed."""
    return [(31 * seed + 7 * place + place * place * (seed + 3)) % 251 for place in range(tokens)]


@dataclass
class Engine:
    """One in-process engine and the parts of it that tests look into."""

    llm: Any

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def generate(
        self,
        prompts: Sequence[Prompt],
        tokens: int,
        watch: Callable[[], None] | None = None,
        extra_args: Sequence[dict[str, Any] | None] | None = None,
    ) -> list[list[int]]:
        """Greedy tokens of all prompts, submitted together; ``watch`` is called after each step.

        ``extra_args`` are those of each request, as a client gives them in ``vllm_xargs``.
        """
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        names = [f"{id(prompts)}-{index}" for index in range(len(prompts))]
        extras = extra_args or [None] * len(prompts)
        for name, prompt, extra in zip(names, prompts, extras, strict=True):
            sampling = SamplingParams(
                temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra
            )
            self.add(name, prompt, sampling)
        outputs: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    outputs[output.request_id] = list(output.outputs[0].token_ids)
            if watch:
                watch()
        self.assert_pool_is_whole()
        return [outputs[name] for name in names]

    def assert_pool_is_whole(self) -> None:
        """No page is held by anybody."""
        assert self.pool.get_num_free_blocks() == self.pool.num_gpu_blocks - 1, "pages leaked"

    @contextmanager
    def two_batches_in_flight(self) -> Iterator[None]:
        """Drive the engine as asynchronous scheduling does, which the CPU platform switches off:
        a step is scheduled and run before the results of the one before are looked at."""
        core = self.core
        before = core.batch_queue, core.batch_queue_size, core.step_fn
        core.batch_queue, core.batch_queue_size = deque(maxlen=2), 2
        core.step_fn = core.step_with_batch_queue
        try:
            yield
        finally:
            core.batch_queue, core.batch_queue_size, core.step_fn = before

    def add(self, name: str, prompt: Prompt, sampling: Any) -> None:
        """Submit one request."""
        ids = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        self.llm.llm_engine.add_request(name, ids, sampling)

    def preemptions(self) -> int:
        """Preemptions so far under growpage's scheduler."""
        return int(self.scheduler.ledger.preemptions)


StartEngine = Callable[..., Engine]
"""Settings of a budget or none for plain vLLM, ``pages`` of the pool, any setting of vLLM."""
