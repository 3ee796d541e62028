"""The policies side by side: ratios, agreement, and everything that ``report.json`` holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from growpage.bench.agreement import Agreement, mean_agreement
from growpage.bench.machine import describe_machine, describe_versions
from growpage.bench.pool import Dtype
from growpage.bench.results import RunResult
from growpage.bench.workload import Family

REFERENCE = "full"
"""The policy that ratios and agreement refer to."""

AGREEMENT_NOTE = (
    "Agreement compares greedy outputs token by token with those of full. It measures sameness, "
    "not quality, and its ceiling is well below 100%: in bfloat16 the last bits of a result depend "
    "on which requests share the batch, and one close call that falls the other way changes all "
    "that follows. Plain vLLM does not agree with itself when only the size of its pool changes; "
    "the policy roomy (full KV and a pool for everybody) shows by how much."
)


@dataclass(frozen=True)
class Row:
    """One policy's numbers, those that need a reference among them."""

    result: RunResult
    ratio: float | None
    """Tokens/s over the reference's; none when it was not run."""
    agreement: Agreement | None

    @property
    def common_prefix(self) -> float | None:
        """See :class:`Agreement`."""
        return self.agreement.common_prefix if self.agreement else None

    @property
    def equal_tokens(self) -> float | None:
        """See :class:`Agreement`."""
        return self.agreement.equal_tokens if self.agreement else None


@dataclass(frozen=True)
class Metric:
    """One line of the tables and one field of ``report.json``."""

    key: str
    label: str
    value: Callable[[Row], float | int | None]
    form: str = ",d"
    """How it is shown, a format specification."""

    def show(self, row: Row) -> str:
        """The value as text; a dash when there is none."""
        value = self.value(row)
        return "-" if value is None else format(value, self.form)


METRICS = (
    Metric("tokens_per_s", "tokens/s", lambda row: row.result.tokens_per_s, ".1f"),
    Metric("ratio_to_full", "ratio to full", lambda row: row.ratio, ".2f"),
    Metric("wall_s", "wall time, s", lambda row: row.result.wall_s, ".1f"),
    Metric("output_tokens", "tokens generated", lambda row: row.result.output_tokens),
    Metric("preemptions", "preemptions", lambda row: row.result.preemptions),
    Metric("recomputed_tokens", "recomputed tokens", lambda row: row.result.recomputed_tokens),
    Metric("mean_pages", "pages a request, mean", lambda row: row.result.mean_pages, ".1f"),
    Metric("peak_pages", "pages a request, peak", lambda row: row.result.peak_pages),
    Metric("mean_resident", "requests resident, mean", lambda row: row.result.mean_resident, ".1f"),
    Metric("peak_resident", "requests resident, most", lambda row: row.result.peak_resident),
    Metric("compressions", "compressions", lambda row: row.result.compressions),
    Metric("growths", "growths", lambda row: row.result.growths),
    Metric("pages_leaked", "pages leaked", lambda row: row.result.pages_leaked),
    Metric(
        "agreement_prefix",
        "agreement: common prefix",
        lambda row: row.common_prefix,
        ".0%",
    ),
    Metric(
        "agreement_tokens",
        "agreement: equal tokens",
        lambda row: row.equal_tokens,
        ".0%",
    ),
)


@dataclass(frozen=True)
class Setting:
    """What all policies of a comparison have in common."""

    model: str
    """The model's name."""
    families: Mapping[str, Family]
    """Each request's family, in the order of submission."""
    max_new_tokens: int
    pool_pages: int
    block_size: int
    """Tokens a page."""
    dtype: Dtype
    """What the model is served in."""
    page_bytes: int
    pool_formula: str
    prefix_caching: bool
    seed: int
    settings: Mapping[str, Mapping[str, Any] | None]
    """Each policy's budget configuration; none for vLLM without the plugin."""
    machine: Mapping[str, str | int] = field(default_factory=describe_machine)
    versions: Mapping[str, str] = field(default_factory=describe_versions)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class Comparison:
    """The results of all policies under one setting."""

    setting: Setting
    results: Sequence[RunResult]
    """At least one, in the order in which they ran."""

    @property
    def rows(self) -> list[Row]:
        """The results, with what compares them to the reference."""
        reference = next((each for each in self.results if each.policy == REFERENCE), None)
        if reference is None:
            return [Row(result, ratio=None, agreement=None) for result in self.results]
        return [
            Row(
                result,
                ratio=result.tokens_per_s / reference.tokens_per_s,
                agreement=mean_agreement(result.outputs, reference.outputs),
            )
            for result in self.results
        ]

    def headline(self) -> str:
        """The outcome in one sentence."""
        pool = (
            f"{len(self.setting.families)} requests and a pool of {self.setting.pool_pages} pages"
        )
        others = [row for row in self.rows if row.ratio and row.result.policy != REFERENCE]
        if not others:
            return f"{pool}."
        each = " and ".join(f"{row.result.policy} {row.ratio:.2f}x" for row in others)
        return f"With the same {pool}, tokens/s relative to {REFERENCE}: {each}."

    def to_dict(self) -> dict[str, Any]:
        """The content of ``report.json``."""
        setting = self.setting
        return {
            "policies": {
                row.result.policy: {
                    **{metric.key: _rounded(metric.value(row)) for metric in METRICS},
                    "growths_refused": row.result.growths_refused,
                    "evicted_tokens": row.result.evicted_tokens,
                    "steps": row.result.steps,
                    "engine_start_s": _rounded(row.result.engine_start_s),
                    "pool_pages": row.result.pool_pages,
                    "settings": setting.settings.get(row.result.policy),
                }
                for row in self.rows
            },
            "model": setting.model,
            "dtype": setting.dtype,
            "workload": {
                "requests": len(setting.families),
                "families": {
                    family: list(setting.families.values()).count(family)
                    for family in dict.fromkeys(setting.families.values())
                },
                "max_new_tokens": setting.max_new_tokens,
                "decoding": "greedy",
            },
            "pool": {
                "pages": setting.pool_pages,
                "block_size": setting.block_size,
                "page_bytes": setting.page_bytes,
                "formula": setting.pool_formula,
                "prefix_caching": setting.prefix_caching,
            },
            "seed": setting.seed,
            "machine": dict(setting.machine),
            "versions": dict(setting.versions),
            "date": setting.date,
        }


def _rounded(value: float | int | None) -> float | int | None:
    return round(value, 4) if isinstance(value, float) else value
