"""The three ways to reach a contender: a process of ours, a server of ours, a server that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from growpage.bench.contenders import Contender
from growpage.bench.pool import Dtype, page_bytes
from growpage.bench.server import GROWPAGE_SERVE, PLAIN_SERVE, serve
from growpage.bench.throughput.engine_process import engine_process
from growpage.bench.throughput.experiment import Engine, Experiment
from growpage.bench.throughput.exposition import Reading
from growpage.bench.throughput.load import LoadRequest
from growpage.bench.throughput.protocol import EngineSpec
from growpage.bench.throughput.served import ServedEngine
from growpage.budget.errors import ConfigError


@dataclass(frozen=True)
class Engines:
    """Starts contenders, each in a process or behind a server of its own.

    Args:
        experiment: what they are started for.
        model: a model's folder, its tokenizer in it.
        out: a folder that exists, for logs and settings.
        seed: vLLM's.
        prefix_caching: whether prompts share pages.
        eager: whether the model runs as it is, and not compiled.
        dtype: what the model is served in.
    """

    experiment: Experiment
    model: Path
    out: Path
    seed: int = 0
    prefix_caching: bool = False
    eager: bool = True
    dtype: Dtype = "auto"

    @contextmanager
    def in_process(self, contender: Contender, pool_pages: int) -> Iterator[Engine]:
        """Stepped directly, in a process of its own: the least noise.

        Raises:
            RunError: it did not start.
        """
        log = self._log(contender, pool_pages)
        with engine_process(self._spec(contender, pool_pages), log) as engine:
            yield engine

    @contextmanager
    def served(self, contender: Contender, pool_pages: int) -> Iterator[Engine]:
        """Behind a server: with all that lies between an engine and its users.

        Raises:
            ServerError, RunError: it did not start, or does not answer.
        """
        spec = self._spec(contender, pool_pages)
        flags = server_flags(spec)
        command: tuple[str, ...] = PLAIN_SERVE
        if contender.settings is not None:
            command = GROWPAGE_SERVE
            settings = self.out / f"{contender.slug}.settings.json"
            settings.write_text(json.dumps(contender.settings))
            flags += ["--growpage-config", str(settings)]
        log = self._log(contender, pool_pages)
        with serve(flags, log, command=command) as server:
            engine = ServedEngine(server.address, self.model.name, spec.requests)
            engine.warm_up()
            yield engine

    def _log(self, contender: Contender, pool_pages: int) -> Path:
        return self.out / f"{contender.slug}-{pool_pages}-pages.log"

    def _spec(self, contender: Contender, pool_pages: int) -> EngineSpec:
        return EngineSpec(
            contender=contender,
            model=str(self.model),
            requests=list(self.experiment.requests),
            pool_pages=pool_pages,
            block_size=self.experiment.block_size,
            max_num_seqs=contender.concurrency or self.experiment.max_num_seqs,
            prefix_caching=self.prefix_caching,
            eager=self.eager,
            dtype=self.dtype,
            seed=self.seed,
        )


def server_flags(spec: EngineSpec) -> list[str]:
    """Those of ``vllm serve`` that start the same engine as in a process."""
    stored = spec.contender.kv_cache_dtype
    page = page_bytes(Path(spec.model), spec.block_size, stored, spec.dtype)
    return [
        spec.model,
        *("--served-model-name", Path(spec.model).name),
        *("--block-size", str(spec.block_size)),
        *("--max-num-seqs", str(spec.max_num_seqs)),
        *("--max-model-len", str(-(-spec.longest // spec.block_size) * spec.block_size)),
        # And the null block.
        *("--kv-cache-memory-bytes", str((spec.pool_pages + 1) * page)),
        *("--dtype", spec.dtype, "--kv-cache-dtype", stored),
        *("--seed", str(spec.seed)),
        "--enable-prefix-caching" if spec.prefix_caching else "--no-enable-prefix-caching",
        *(["--enforce-eager"] if spec.eager else []),
        *("--no-async-scheduling", "--disable-uvicorn-access-log"),
    ]


@dataclass(frozen=True)
class RunningServer:
    """What a server that is not ours says of itself."""

    address: str
    model: str
    pool_pages: int
    block_size: int

    @classmethod
    def at(cls, url: str) -> RunningServer:
        """Ask the server.

        Raises:
            ConfigError: it does not answer, or is none of vLLM's.
        """
        address = url.rstrip("/").removesuffix("/v1")
        try:
            with httpx2.Client(base_url=address, timeout=30) as http:
                model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
                reading = Reading.of(http.get("/metrics").raise_for_status().text)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError) as error:
            raise ConfigError(
                f"--url {url} is no server of vLLM that answers ({error!r}); name one as "
                "http://host:port"
            ) from None
        if reading.pool_pages is None or reading.block_size is None:
            raise ConfigError(
                f"--url {url} does not say how large its KV cache is: /metrics lacks "
                "vllm:cache_config_info; start it without --disable-log-stats"
            )
        return cls(address, str(model), reading.pool_pages, reading.block_size)

    @contextmanager
    def engine(self, requests: Sequence[LoadRequest]) -> Iterator[Engine]:
        """What serves there, warmed up; it is left as it is.

        Raises:
            RunError: it does not answer.
        """
        engine = ServedEngine(self.address, self.model, requests)
        engine.warm_up()
        yield engine
