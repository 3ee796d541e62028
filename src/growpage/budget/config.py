"""The configuration of a budget: what an operator sets, validated and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from growpage.budget.errors import ConfigError
from growpage.budget.settings_file import load_settings

PolicyName = Literal["full", "fixed", "growpage", "every", "elastic", "entropy"]
GiverName = Literal["largest", "least_evicted", "least_loss", "widest_margin"]
OverHeadsName = Literal["mean", "q90"]
FloorName = Literal["working_set", "promised"]
ScoreName = Literal[
    "window",
    "window_mass",
    "output_error",
    "diversity",
    "summary",
    "both",
    "streaming",
    "random",
]

WINDOW_SCORES = frozenset({"window", "window_mass", "output_error", "diversity", "both"})
"""Scores that look at the last real queries."""

SUMMARY_SCORES = frozenset({"summary", "both"})
"""Scores that look at the query averages."""


class BudgetConfig(BaseModel):
    """Everything that decides how much KV a request may hold and what it loses.

    Sizes are in tokens unless the name says pages. Immutable: a change is a new object.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    policy: PolicyName = "elastic"
    """Who decides at a capacity boundary: full (never compress), fixed (a constant budget),
    growpage (the paper's rule), every (grow at a given rate with no signal: the control), elastic
    (grow while there is memory; when there is none, who has lost least gives a page), entropy (grow
    while attention is wide and not settled)."""

    budget: Annotated[int, Field(ge=1)] = 512
    """Tokens a request may hold under the policy `fixed`."""

    step: Annotated[int, Field(ge=1)] | None = None
    """Tokens between capacity boundaries, a multiple of vLLM's block size. Default: one block."""

    min_pages: Annotated[int, Field(ge=2)] = 4
    """The least capacity, in pages, except under `fixed`; an admitted request is sure of it."""

    max_pages: Annotated[int, Field(ge=2)] | None = None
    """Pages that no request exceeds, whatever is measured. Default: no limit."""

    sink: Annotated[int, Field(ge=0)] = 4
    """First tokens that are always kept (attention sinks)."""

    recent: Annotated[int, Field(ge=1)] = 16
    """Last tokens that are always kept."""

    protect_prompt: bool = False
    """Keep the whole prompt as long as the capacity exceeds it by at least a step. Pages that
    requests share are kept as long as that is possible, whatever this says."""

    local_quota: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Share of each page's tokens that is kept, so that no region is lost (paper: 64 of 256)."""

    score: ScoreName = "window"
    """What ranks tokens for eviction: window (attention of the last real queries, times the value
    norm), window_mass (without the norm), output_error (what dropping the token alone does to
    their attention output), diversity (window_mass less the likeness to other keys), summary (as
    window, of both averages), both (the larger of window and summary), streaming (sinks and
    recents), random."""

    window: Annotated[int, Field(ge=1, le=64)] = 16
    """Real queries that the scores window, window_mass, output_error, diversity and both look
    at."""

    beta_short: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Decay of the short query summary."""

    beta_long: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Decay of the long query summary."""

    mass: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Attention mass p that a working set D_p must hold."""

    demand_over_heads: OverHeadsName | None = None
    """One working set and difference out of those of all layers and query heads: mean (the
    paper's), q90 (their 0.9-quantile, so that the demanding ones decide). Predicted losses are
    always the mean. Default: q90 under `elastic`, mean under all others."""

    equal_norm: bool = False
    """Compare the working sets of both averages at the norm of the short one: a longer average has
    a smaller norm, and so a flatter attention. False is the paper's comparison."""

    tau: float = 0.0
    """Grow when D_p(short) - D_p(long) exceeds this many tokens."""

    tau_quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Grow when D_p(short) - D_p(long) exceeds this quantile of the last 1024 such differences in
    the engine; tau decides until there are 32. Default: none, tau decides always."""

    warmup: Annotated[int, Field(ge=1)] = 16
    """Decoded tokens before a summary is trusted; until then a request grows."""

    growth_rate: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of boundaries at which the policy `every` grows."""

    giver: GiverName = "least_evicted"
    """Who gives a page when pages are short, under `elastic`: least_evicted (the one that keeps the
    largest share of its tokens), largest (the largest cache above its floor), least_loss (the one
    predicted to lose least attention mass), widest_margin (the one with most tokens beyond its
    working set, and its prompt if that is protected)."""

    young: Annotated[int, Field(ge=0)] = 64
    """Decoded tokens below which the giver `least_loss` exempts a request: what it will need has
    not been seen yet."""

    watermark: Annotated[int, Field(ge=0)] = 0
    """Pages that `elastic` keeps free beyond those that are needed at once."""

    floor: FloorName = "working_set"
    """What a request keeps under `elastic` when others want pages: working_set (its
    working set, and its prompt if that is protected), promised (the capacity that it was admitted
    with, and no more)."""

    floor_loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Predicted loss of attention mass that sets a request's floor under `elastic`. Default: none,
    the setting `floor` says."""

    prompt_floor: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of its prompt that a request keeps under `elastic` until its working set is measured,
    with the floor working_set; all of it if the prompt is protected."""

    admit_pages: Annotated[int, Field(ge=2)] | None = None
    """Under `elastic`, pages that each request in the engine could still hold if the pool were
    shared out equally; one more that would leave fewer has to wait. Default: none, a request is
    admitted when the floors fit."""

    track_entropy: bool = False
    """Measure demand and attention entropy under any policy that compresses; `entropy` does it
    anyway. Costs one layer's attention over the cached keys in every step."""

    entropy_boundary: Annotated[float, Field(ge=0)] = 0.2
    """Under `entropy`, what each nat of mean attention entropy adds to the least capacity, as a
    share of it; below the sum a request grows."""

    entropy_dense: Annotated[float, Field(ge=0, le=1)] = 0.7
    """Under `entropy`, share of the last steps with like entropy above which attention is settled,
    and a request is compressed."""

    entropy_wide: Annotated[float, Field(ge=0)] = 2.1
    """Under `entropy`, mean entropy in nats above which a request grows if its attention is not
    settled; 2.1 is attention to 8 tokens in effect."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the score `random`."""

    centre_keys: bool = True
    """In an 8-bit cache (--kv-cache-dtype fp8), store keys relative to their centre, and round to
    the nearest number; false is vLLM's own 8-bit cache. No effect in any other cache."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        """Not what pydantic would take: `sink: yes` for 1, and a flag's `none` for text."""
        name = str(info.field_name)
        if isinstance(value, bool) and cls.model_fields[name].annotation is not bool:
            raise ValueError
        if value == "none" and cls.model_fields[name].default is None:
            return None
        return value

    @property
    def over_heads(self) -> OverHeadsName:
        """:attr:`demand_over_heads`, or what the policy takes by default."""
        return self.demand_over_heads or ("q90" if self.policy == "elastic" else "mean")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Validate ``settings`` (field name to value).

        Raises:
            ConfigError: one line for the first wrong field: name, value, what is allowed.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(f"the settings are {_show(settings)}, but must be {_MAPPING}")
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            raise ConfigError(_explain(error.errors()[0])) from None

    @classmethod
    def from_file(cls, path: str | Path, **overrides: Any) -> Self:
        """Load a YAML file, or a JSON file named so; ``overrides`` win over the file.

        Raises:
            ConfigError: the file is missing, is not a mapping, or holds a wrong field.
        """
        cls.of(overrides)  # so that the file is not blamed for them
        content = load_settings(Path(path))
        if not isinstance(content, dict):
            held = "nothing" if content is None else f"a {type(content).__name__}"
            raise ConfigError(f"{path} holds {held}, but must hold {_MAPPING}")
        try:
            return cls.of({**content, **overrides})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def for_block_size(self, block_size: int) -> PageBudget:
        """Translate tokens into pages of ``block_size`` tokens.

        Raises:
            ConfigError: the step is no multiple of the block size, a capacity leaves no room for
                sinks, recent tokens and one step, or two settings contradict each other.
        """
        step = self.step or block_size
        if step % block_size:
            _refuse("step", step, f"a multiple of the block size, {block_size}")
        if self.local_quota * block_size > block_size - 1:
            _refuse("local_quota", self.local_quota, f"at most {(block_size - 1) / block_size:g}")
        least = self.sink + self.recent + step
        if self.policy == "fixed" and self.budget // block_size * block_size < least:
            needed = -(-least // block_size) * block_size
            _refuse(
                "budget", self.budget, f"at least {needed}: {_room(least, step)}, in whole pages"
            )
        # The capacity of `fixed` is its budget, so min_pages says nothing there.
        floor = None if self.policy == "fixed" else self.min_pages
        for name, pages in (("min_pages", floor), ("max_pages", self.max_pages)):
            if pages is not None and pages * block_size < least:
                needed = -(-least // block_size)
                _refuse(
                    name, pages, f"at least {needed} pages of {block_size}: {_room(least, step)}"
                )
        if floor is not None and self.max_pages is not None and self.max_pages < floor:
            _refuse("max_pages", self.max_pages, f"at least min_pages, {floor}")
        if self.recent < self.window and self.score in WINDOW_SCORES:
            _refuse("recent", self.recent, f"at least the window, {self.window}")
        if self.floor == "promised" and self.floor_loss is not None:
            _refuse("floor", self.floor, f"working_set where floor_loss is set, {self.floor_loss}")
        if self.floor == "promised" and self.prompt_floor < 1:
            _refuse("prompt_floor", self.prompt_floor, "1 where the floor is what was promised")
        if self.admit_pages is not None and self.admit_pages < self.min_pages:
            _refuse("admit_pages", self.admit_pages, f"at least min_pages, {self.min_pages}")
        if self.beta_short >= self.beta_long:
            _refuse("beta_short", self.beta_short, f"less than beta_long, {self.beta_long}")
        return PageBudget(
            block_size=block_size,
            budget_pages=self.budget // block_size,
            step_pages=step // block_size,
            local_quota=int(self.local_quota * block_size),
        )


class PageBudget(BaseModel):
    """The sizes of a :class:`BudgetConfig` in pages of one engine's block size."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    block_size: int
    """Tokens in a page."""
    budget_pages: int
    """Pages under the policy `fixed`."""
    step_pages: int
    """Pages between capacity boundaries."""
    local_quota: int
    """Tokens of each page that eviction must leave."""


def _room(tokens: int, step: int) -> str:
    return f"room for {tokens} tokens (sink + recent + one step of {step})"


def _refuse(name: str, value: Any, allowed: str) -> NoReturn:
    raise ConfigError(f"{name} is {_show(value)}, but must be {allowed}")


def _show(value: Any) -> str:
    """``repr``, but short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _explain(error: ErrorDetails) -> str:
    """One line for a pydantic error: the field, its value, and what is allowed."""
    name = error["loc"][0] if error["loc"] else "configuration"
    if error["type"] == "invalid_key":  # it has no name: it is no string
        name = error["input"]
    if error["type"] in ("extra_forbidden", "invalid_key"):
        return f"{name} is not a setting; the settings are {', '.join(BudgetConfig.model_fields)}"
    return f"{name} is {_show(error['input'])}, but must be {allowed_values(str(name))}"


def allowed_values(name: str) -> str:
    """What field ``name`` accepts, in words: ``integer, at least 1 and at most 64``."""
    schema = BudgetConfig.model_json_schema()["properties"][name]
    options = schema.get("anyOf", [schema])
    if "enum" in options[0]:
        or_none = " or none" if len(options) > 1 else ""
        return "one of " + ", ".join(options[0]["enum"]) + or_none
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    limits = " and ".join(
        f"{words} {options[0][key]:g}" for key, words in bounds.items() if key in options[0]
    )
    kinds = " or ".join(_KINDS[option["type"]] for option in options)
    return f"{kinds}, {limits}" if limits else kinds.replace("a number", "a finite number")


_MAPPING = "a mapping of settings such as 'policy: fixed'"
_KINDS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "null": "none"}
