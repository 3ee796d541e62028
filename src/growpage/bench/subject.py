"""What is replayed and analysed: a model, and the questions that it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growpage.bench.contenders import Contender
from growpage.bench.pool import Dtype, page_bytes
from growpage.bench.prompts import read_prompts, tokenize
from growpage.bench.replay import (
    Load,
    Measurement,
    Setup,
    check_lengths,
    exact_bytes,
    measure,
    prompts_hash,
)
from growpage.budget.errors import ConfigError
from growpage.models import smollm2

MOST_EXACT_BYTES = 8 * 2**30
"""Disk for whole distributions, unless something else is asked for."""


@dataclass(frozen=True)
class Subject:
    """A model, its prompts, and all that decides its answers.

    ``growpage bench quality replay`` and the analyses with the same options have the same set-up,
    so either goes on in the other's work folder.
    """

    model: Path
    questions: str
    """The name of their file."""
    prompts: dict[str, list[int]]
    """Token ids by name."""
    families: dict[str, str | None]
    setup: Setup
    work: Path
    """Folder for finished parts."""

    @classmethod
    def of(
        cls,
        questions: Path,
        model: Path | None,
        *,
        work: Path,
        requests: int,
        new_tokens: int,
        temperature: float,
        concurrency: int,
        seed: int,
        mean_gap: float = 25,
        most_exact_bytes: int = MOST_EXACT_BYTES,
        top: int = 20,
        dtype: Dtype = "auto",
    ) -> Subject:
        """Read questions and model.

        Args:
            questions: JSONL with a question a line.
            model: a model's folder; default: the embedded one.
            work: folder for finished parts.
            requests: questions taken from the file.
            new_tokens: tokens of an answer, at most.
            temperature: of the answers.
            concurrency: requests at once, at most.
            seed: of the answers.
            mean_gap: steps between two arrivals under varying load, on average.
            most_exact_bytes: disk for whole distributions; where more is needed, the likeliest
                tokens are compared.
            top: those likeliest tokens.
            dtype: what the model is served in.

        Raises:
            ConfigError: one of them cannot be used, and why.
        """
        asked = read_prompts(questions, requests)
        try:
            folder = model or smollm2.ensure()
            page_bytes(folder, dtype=dtype)  # says whether it is a model's folder
        except (smollm2.ModelError, ValueError) as error:
            raise ConfigError(str(error)) from error
        prompts = tokenize(folder, asked)
        check_lengths(folder, prompts, new_tokens)
        setup = Setup(
            model=folder.resolve().name,
            prompts=prompts_hash(prompts),
            requests=requests,
            new_tokens=new_tokens,
            temperature=temperature,
            concurrency=concurrency,
            mean_gap=mean_gap,
            exact=exact_bytes(folder, requests, new_tokens, dtype) <= most_exact_bytes,
            top=top,
            dtype=dtype,
            seed=seed,
        )
        families = {each.id: each.family for each in asked}
        return cls(folder, questions.name, prompts, families, setup, work)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that there can be."""
        return max(map(len, self.prompts.values())) + self.setup.new_tokens

    def replay(
        self,
        contenders: Sequence[Contender],
        say: Callable[[str], None],
        pool: str = "100%",
        loads: Sequence[Load] = ("saturated",),
    ) -> Measurement:
        """Replay the answers under each contender, by default all requests at once.

        Raises:
            ConfigError, RuntimeError: see :func:`growpage.bench.replay.measure`.
        """
        return measure(
            self.setup,
            self.model,
            self.prompts,
            contenders,
            work=self.work,
            pool=pool,
            loads=loads,
            families=self.families,
            say=say,
        )

    def describe(self) -> dict[str, Any]:
        """For the report."""
        return {
            "model": self.setup.model,
            "questions": self.questions,
            "seed": self.setup.seed,
            "setup": self.setup.model_dump(),
        }
