"""Checks of settings that fight each other, the pool or the load."""

from __future__ import annotations

from collections.abc import Iterator

from growpage.budget.config import BudgetConfig, PageBudget
from growpage.budget.errors import ConfigError
from growpage.diagnosis.checks.pressure import policy
from growpage.diagnosis.checks.verdict import Verdict, failure, ok, unknown, warning
from growpage.diagnosis.evidence import Engine

CACHE_CONFIG = "vllm:cache_config_info"

READ_BY: dict[str, tuple[str, ...]] = {
    "budget": ("fixed",),
    "growth_rate": ("every",),
    "tau": ("growpage",),
    "tau_quantile": ("growpage",),
    "giver": ("elastic",),
    "watermark": ("elastic",),
    "young": ("elastic",),
    "prompt_floor": ("elastic",),
    "floor": ("elastic",),
    "floor_loss": ("elastic",),
    "admit_pages": ("elastic",),
    "entropy_boundary": ("entropy",),
    "entropy_dense": ("entropy",),
    "entropy_wide": ("entropy",),
}
"""The policies that read a setting, where not all do."""

NOT_NAMED = "the server does not export its settings"
NAME_THEM = "name the budget's file, as given to growpage serve, with --config"


def prefix_caching(engine: Engine) -> Verdict:
    """Whether the prefix cache is off where prompts are most of the work."""
    prompt = engine.increase("vllm:prompt_tokens_total")
    generated = engine.increase("vllm:generation_tokens_total")
    if engine.label(CACHE_CONFIG, "enable_prefix_caching") == "True":
        queries = engine.increase("vllm:prefix_cache_queries_total")
        if not queries:
            return ok("on; nothing was looked up")
        hits = engine.increase("vllm:prefix_cache_hits_total")
        return ok(f"on; {hits / queries:.0%} of {queries:.0f} looked-up tokens were there")
    if prompt <= generated:
        return ok(f"off, with {prompt:.0f} prompt tokens for {generated:.0f} generated")
    return warning(
        f"off, with {prompt:.0f} prompt tokens for {generated:.0f} generated: conversations that "
        "come back turn after turn are computed anew each time",
        "--enable-prefix-caching",
    )


def eight_bit_cache(engine: Engine) -> Verdict:
    """Whether an 8-bit cache stores its keys relative to their centre."""
    cache = engine.label("growpage_mode_info", "cache")
    if not cache.startswith("fp8"):
        return ok(f"not in use (the cache is {cache})")
    if engine.settings is None:
        return unknown(f"the cache is {cache}; {NOT_NAMED}, centre_keys among them", NAME_THEM)
    if engine.settings.centre_keys:
        return ok(f"the cache is {cache}, with centred keys")
    return warning(
        f"the cache is {cache}, and centre_keys is false: models with large keys are ruined by it",
        "--growpage-centre-keys true",
    )


def settings_and_pool(engine: Engine) -> Verdict:
    """Whether the settings fit each other, the policy and the pool."""
    if engine.settings is None:
        return unknown(NOT_NAMED, NAME_THEM)
    config = engine.settings
    running = policy(engine)
    if config.policy != running:
        return warning(
            f"the policy is {config.policy} in the file and {running} in the engine",
            "name the file that this server was started with",
        )
    block = int(engine.label(CACHE_CONFIG, "block_size"))
    pages = int(engine.label(CACHE_CONFIG, "num_gpu_blocks")) - 1  # vLLM keeps one for itself
    try:
        sizes = config.for_block_size(block)
    except ConfigError as error:
        return failure(f"with pages of {block} tokens, {error}", "the setting that it names")
    found = list(_misfits(config, sizes, pages, int(engine.last("growpage_max_num_seqs"))))
    if not found:
        return ok(f"{len(config.model_fields_set)} settings fit a pool of {pages} pages of {block}")
    return warning(
        "; ".join(problem for problem, _ in found), "; ".join(remedy for _, remedy in found)
    )


def _misfits(
    config: BudgetConfig, sizes: PageBudget, pages: int, max_num_seqs: int
) -> Iterator[tuple[str, str]]:
    """What does not fit, and the remedy."""
    for name in sorted(config.model_fields_set):
        readers = READ_BY.get(name, (config.policy,))
        if config.policy not in readers:
            yield (
                f"{name} is set, but the policy {config.policy} does not read it",
                f"leave out --growpage-{name.replace('_', '-')}, or --growpage-policy "
                + " or ".join(readers),
            )
    if config.policy == "full":
        return
    if config.policy == "elastic" and config.watermark >= pages:
        yield (
            f"watermark is {config.watermark} pages, and the whole pool has {pages}, so that pages "
            "are always short",
            f"a --growpage-watermark well below {pages}",
        )
    if config.policy == "elastic" and (config.admit_pages or 0) > pages // 2:
        yield (
            f"admit_pages is {config.admit_pages}, and the whole pool has {pages} pages, so that "
            "requests run one at a time",
            f"a --growpage-admit-pages of at most {pages // 2}",
        )
    name, least = (
        ("budget", sizes.budget_pages)
        if config.policy == "fixed"
        else ("min_pages", config.min_pages)
    )
    if least * max_num_seqs > pages:
        fit = pages // least
        yield (
            f"{name} asks for {least} pages a request, {least * max_num_seqs} for --max-num-seqs "
            f"{max_num_seqs}, and the pool has {pages}: at most {fit} fit at once",
            f"--max-num-seqs {max(fit, 1)}, or a smaller --growpage-{name.replace('_', '-')}",
        )
    if config.max_pages is not None and config.max_pages > pages:
        yield (
            f"max_pages is {config.max_pages}, more than the pool's {pages}, so that it never "
            "binds",
            f"a --growpage-max-pages below {pages}, or none",
        )
