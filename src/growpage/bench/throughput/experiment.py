"""Contenders in turn, A B C A B C, so that what changes with time strikes them all alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from growpage.bench.contenders import PLAIN, Contender
from growpage.bench.results import Progress
from growpage.bench.throughput.load import ClosedLoop, LoadRequest, OpenLoop, pages_needed
from growpage.bench.throughput.protocol import Measurement
from growpage.bench.throughput.summary import Run, Setting
from growpage.budget.config import BudgetConfig
from growpage.budget.errors import ConfigError

OnProgress = Callable[[str], None]


class Engine(Protocol):
    """One contender, up and warm, in a process or behind an address."""

    def serve(
        self, load: ClosedLoop | OpenLoop, on_progress: Callable[[Progress], None]
    ) -> Measurement:
        """Serve all requests at this pace."""


StartEngine = Callable[[Contender, int], AbstractContextManager[Engine]]
"""Starts a contender with a pool of so many pages."""


@dataclass(frozen=True)
class Experiment:
    """What is compared, and where."""

    contenders: Sequence[Contender]
    requests: Sequence[LoadRequest]
    loads: Sequence[ClosedLoop | OpenLoop]
    pools: Sequence[str]
    """Pages, or shares of what the load needs."""
    rounds: int
    block_size: int
    max_num_seqs: int
    """Requests at once, at most, where a contender says nothing else."""

    @property
    def needed_pages(self) -> int:
        """With which no load can ever be short."""
        return pages_needed(self.requests, self.max_num_seqs, self.block_size)

    @property
    def baseline(self) -> str:
        """The contender to which ratios refer: vLLM without the plugin, or the first one."""
        plain = (each.name for each in self.contenders if each.policy == PLAIN)
        return next(plain, self.contenders[0].name)

    def settings(self) -> list[Setting]:
        """All loads at the first pool, then at the next."""
        return [
            Setting(load, pool, pool_pages(pool, self.needed_pages), self.needed_pages)
            for pool in self.pools
            for load in self.loads
        ]

    def pages_of(self, contender: Contender, pool: str) -> int:
        """Pages of a contender's pool, where the setting has ``pool``."""
        return contender.pool_pages(self.needed_pages, pool_pages(pool, self.needed_pages))

    def check(self) -> None:
        """Refuse what cannot run, before anything is started.

        Raises:
            ConfigError: a pool is too small for a request, or a setting does not fit the page size.
        """
        longest = max(request.pages(self.block_size) for request in self.requests)
        prompt = max(len(request.prompt_token_ids) for request in self.requests)
        for contender in self.contenders:
            if contender.settings is not None:
                try:
                    BudgetConfig.of(contender.settings).for_block_size(self.block_size)
                except ConfigError as error:
                    raise ConfigError(f"{contender.name}: {error}") from None
            grows = contender.policy in (PLAIN, "full")
            least = longest if grows else -(-prompt // self.block_size)
            for pool in self.pools:
                pages = self.pages_of(contender, pool)
                if pages < least:
                    what = "request" if grows else "prompt"
                    raise ConfigError(
                        f"{contender.name} would have a pool of {pages} pages, and the longest "
                        f"{what} alone needs {least}: give it a larger --pool, or shorten the "
                        "requests"
                    )

    def run(self, start: StartEngine, on_progress: OnProgress) -> Iterator[Run]:
        """All runs, as they are done.

        An engine is up alone, for one round of all loads. Of several that are up together the first
        can be slower by half than the last for as long as they live, whatever they are.

        Raises:
            RunError: an engine failed.
        """
        for pool in dict.fromkeys(self.pools):
            settings = [each for each in self.settings() if each.pool == pool]
            for number in range(1, self.rounds + 1):
                # Another one begins each round, so that none always follows the same one.
                first = (number - 1) % len(self.contenders)
                for contender in (*self.contenders[first:], *self.contenders[:first]):
                    on_progress(f"{contender.name}: starting, pool {pool}, round {number}")
                    pages = self.pages_of(contender, pool)
                    with start(contender, pages) as engine:
                        for setting in settings:
                            label = f"{setting.load}, pool {pool}, round {number}, {contender.name}"
                            measurement = self._serve(engine, setting.load, label, on_progress)
                            load_average = os.getloadavg()[0]
                            yield Run(
                                setting, contender.name, number, pages, measurement, load_average
                            )

    def _serve(
        self, engine: Engine, load: ClosedLoop | OpenLoop, label: str, on_progress: OnProgress
    ) -> Measurement:
        total = len(self.requests)
        on_progress(label)
        return engine.serve(
            load, lambda progress: on_progress(f"{label}: {progress.finished}/{total} requests")
        )


def pool_pages(pool: str, needed: int) -> int:
    """Pages of a pool that is given as pages, or as a share such as ``20%`` of those needed.

    Raises:
        ConfigError: it is neither.
    """
    text = pool.strip()
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else None
        pages = round(needed * share) if share is not None else int(text)
    except (ValueError, OverflowError):
        pages = 0
    if pages < 1:
        raise ConfigError(
            f"--pool is {pool!r}, but must be a number of pages, or a share such as 20% of the "
            f"{needed} that the load needs"
        )
    return pages
