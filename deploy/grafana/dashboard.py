"""The Grafana dashboard of growpage, as code.

    python deploy/grafana/dashboard.py      # writes growpage.json beside this file

Import ``growpage.json`` into Grafana (10.1 or newer), or provision it; it asks for a data source of
the type Prometheus. The panels query vLLM's metrics, growpage's, and the series that
``deploy/prometheus/rules.yaml`` records.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

OUTPUT = Path(__file__).with_name("growpage.json")

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
MODELS = 'namespace=~"$namespace",model_name=~"$model"'
ENGINES = f'{MODELS},instance=~"$instance",engine=~"$engine"'
"""Of every query, so that the variables at the top mean the whole dashboard."""

BY_ENGINE = "model_name, instance, engine"
ENGINE = "{{model_name}} {{instance}}/{{engine}}"

GREEN, AMBER, RED = "green", "orange", "red"

ENFORCED = 'mode="enforce"'

Steps = list[tuple[float | None, str]]
"""A colour from each value on; the first has none."""


# ---- queries ---------------------------------------------------------------------------------


def query(expr: str, legend: str = "") -> Dataquery:
    """A range query."""
    return Dataquery().expr(expr).legend_format(legend or "__auto").datasource(SOURCE).range()


def instant(expr: str) -> Dataquery:
    """A query for a table: only the latest values, with their labels as columns."""
    return Dataquery().expr(expr).datasource(SOURCE).instant().format(PromQueryFormat.TABLE)


def buckets(expr: str) -> Dataquery:
    """A query for a heatmap."""
    return query(expr, "{{le}}").format(PromQueryFormat.HEATMAP)


def rate(counter: str, by: str, *matchers: str) -> str:
    """Events a second, summed by labels."""
    return f"sum by ({by}) (rate({counter}{{{','.join((ENGINES, *matchers))}}}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str, *matchers: str) -> str:
    """A quantile of a histogram by labels (``by`` may be empty)."""
    labels = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', labels, *matchers)})"


# ---- panels ----------------------------------------------------------------------------------


def thresholds(steps: Steps) -> dashboards.ThresholdsConfig:
    """Colours by absolute values."""
    return (
        dashboards.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in steps])
    )


def number(title: str, about: str, unit: str, steps: Steps, target: Dataquery) -> stat.Panel:
    """One number, with its recent course behind it."""
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .thresholds(thresholds(steps))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(target)
        .span(3)
        .height(4)
    )


def lines(title: str, about: str, unit: str, *targets: Dataquery) -> timeseries.Panel:
    """Lines over time; every panel explains itself in its description."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
        .span(8)
        .height(8)
    )
    for target in targets:
        panel.with_target(target)
    return panel


def stacked(title: str, about: str, unit: str, *targets: Dataquery) -> timeseries.Panel:
    """Shares of a whole over time."""
    return (
        lines(title, about, unit, *targets)
        .fill_opacity(30)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    )


def limited(panel: timeseries.Panel, limit: float) -> timeseries.Panel:
    """A dashed line where an alert's limit is."""
    return panel.thresholds(thresholds([(None, GREEN), (limit, RED)])).thresholds_style(
        common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
    )


def map_of(title: str, about: str, unit: str, target: Dataquery) -> heatmap.Panel:
    """A histogram over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Spectral")
            .steps(64)
            .reverse(False)
            .exponent(0.5)
            .fill("dark-orange")
        )
        .with_target(target)
        .span(8)
        .height(8)
    )


def listed(title: str, about: str, hidden: tuple[str, ...], target: Dataquery) -> table.Panel:
    """Series by their labels."""
    exclude = dict.fromkeys(("Time", "Value", "__name__", "job", *hidden), True)
    return (
        table.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .with_target(target)
        .show_header(True)
        .with_transformation(
            model.DataTransformerConfig(id_val="organize", options={"excludeByName": exclude})
        )
        .span(12)
        .height(6)
    )


# ---- rows ------------------------------------------------------------------------------------

Panels = list[Builder[model.Panel]]


def now() -> Panels:
    """What an operator looks at first."""
    return [
        number(
            "Pool in use",
            "Pages held, of all; the fullest engine. High is what the pool is for: look at waiting "
            "requests and preemptions, too.",
            "percentunit",
            [(None, GREEN), (0.9, AMBER), (0.98, RED)],
            query(f"max(vllm:kv_cache_usage_perc{{{ENGINES}}})"),
        ),
        number(
            "Page utilisation",
            "Kept tokens over the slots of allocated pages, of busy engines. Below 65% memory is "
            "reserved and not filled.",
            "percentunit",
            [(None, RED), (0.65, GREEN)],
            query(
                f"avg(growpage_kv_page_utilization{{{ENGINES}}} "
                f"and growpage_kv_kept_tokens{{{ENGINES}}} > 0)"
            ),
        ),
        number(
            "Compression",
            "Tokens that running requests would hold uncompressed over those that they hold.",
            "suffix:x",
            [(None, GREEN)],
            query(
                f"sum(growpage_kv_logical_tokens{{{ENGINES}}}) "
                f"/ (sum(growpage_kv_kept_tokens{{{ENGINES}}}) > 0)"
            ),
        ),
        number(
            "Running",
            "Requests that decode or prefill.",
            "none",
            [(None, GREEN)],
            query(f"sum(vllm:num_requests_running{{{ENGINES}}})"),
        ),
        number(
            "Waiting for capacity",
            "Requests that wait for pages or for a place in the batch.",
            "none",
            [(None, GREEN), (1, AMBER), (16, RED)],
            query(f'sum(vllm:num_requests_waiting_by_reason{{{ENGINES},reason="capacity"}})'),
        ),
        number(
            "Growth refused",
            "Capacity steps that were wanted and refused, a second.",
            "cps",
            [(None, GREEN), (1 / 60, AMBER), (1, RED)],
            query(f"sum({rate('growpage_growth_refused_total', BY_ENGINE, ENFORCED)})"),
        ),
        number(
            "Over the loss objective, 1 h",
            "Compressions of the last hour that were predicted to lose more than 10% of the "
            "attention mass; the objective allows 1%. The worst model.",
            "percentunit",
            [(None, GREEN), (0.01, AMBER), (0.144, RED)],
            query(f"max(model:growpage_predicted_loss_over_slo:ratio_rate1h{{{MODELS}}})"),
        ),
        number(
            "Preemptions, 1 h",
            "Requests thrown out of the pool, to be computed again.",
            "none",
            [(None, GREEN), (1, AMBER), (60, RED)],
            query(f"sum(increase(vllm:num_preemptions_total{{{ENGINES}}}[1h]))"),
        ),
        listed(
            "Alerts",
            "Alerts of growpage that are pending or firing; docs/runbooks has a page for each.",
            (),
            instant('ALERTS{alertname=~"GrowPage.*"}'),
        ),
        listed(
            "How engines are set",
            "Policy, score, mode and cache of each engine, and growpage's version.",
            ("endpoint", "container"),
            instant(f"growpage_mode_info{{{ENGINES}}} == 1"),
        ),
    ]


def memory() -> Panels:
    """The pool, and what it is used for."""
    return [
        lines(
            "Pool and pages",
            "Pages in use of the pool, and tokens in the slots of those pages.",
            "percentunit",
            query(f"vllm:kv_cache_usage_perc{{{ENGINES}}}", f"pool in use, {ENGINE}"),
            query(f"growpage_kv_page_utilization{{{ENGINES}}}", f"pages filled, {ENGINE}"),
        ).max(1),
        lines(
            "Demand, kept, capacity",
            "Demand: what running requests would hold uncompressed. Where it is over the capacity, "
            "only compression keeps them running.",
            "short",
            query(f"sum(growpage_kv_logical_tokens{{{ENGINES}}})", "demand"),
            query(f"sum(growpage_kv_kept_tokens{{{ENGINES}}})", "kept"),
            query(f"sum(growpage_kv_capacity_tokens{{{ENGINES}}})", "capacity"),
        ),
        lines(
            "Compression ratios",
            "By eviction (logical over kept tokens), and by a smaller type in the page (2 for an "
            "8-bit cache).",
            "suffix:x",
            query(f"growpage_compression_ratio{{{ENGINES}}}", f"evicted, {ENGINE}"),
            query(f"growpage_intra_page_compress_ratio{{{ENGINES}}}", f"in the page, {ENGINE}"),
        ),
        lines(
            "Pages taken and given back",
            "Pages a second: taken from the pool, and given back by compressions.",
            "short",
            query(rate("growpage_kv_page_allocations_total", BY_ENGINE), f"taken, {ENGINE}"),
            query(
                rate("growpage_reclaimed_pages_total", f"{BY_ENGINE}, mode"),
                f"given back ({{{{mode}}}}), {ENGINE}",
            ),
        ),
        lines(
            "Evicted tokens",
            "Tokens evicted a second, per layer and KV head alike.",
            "short",
            query(
                rate("growpage_evicted_tokens_total", f"{BY_ENGINE}, mode"),
                f"{{{{mode}}}}, {ENGINE}",
            ),
        ),
        lines(
            "Fragmentation and orphans",
            "Neighbours in page tables that are apart in memory; and pages that belong to nobody, "
            "which must be 0.",
            "short",
            query(f"growpage_page_table_fragmentation{{{ENGINES}}}", f"fragmentation, {ENGINE}"),
            query(f"growpage_orphaned_pages{{{ENGINES}}}", f"orphaned pages, {ENGINE}"),
        ),
    ]


def requests() -> Panels:
    """What comes in, and how much it needs."""
    return [
        lines(
            "Requests",
            "Running, waiting by reason, and how many may run at once. Waiting with the pool half "
            "empty and as many running as may: raise --max-num-seqs.",
            "none",
            query(f"sum(vllm:num_requests_running{{{ENGINES}}})", "running"),
            query(
                f"sum by (reason) (vllm:num_requests_waiting_by_reason{{{ENGINES}}})",
                "waiting: {{reason}}",
            ),
            query(f"sum(growpage_max_num_seqs{{{ENGINES}}})", "may run at once"),
        ),
        lines(
            "KV demand of a request",
            "What requests would have held uncompressed when they ended, in tokens; the line over "
            "15 minutes is the recorded one that autoscalers read.",
            "short",
            query(quantile(0.5, "growpage_kv_demand_tokens", "model_name"), "p50 {{model_name}}"),
            query(quantile(0.95, "growpage_kv_demand_tokens", "model_name"), "p95 {{model_name}}"),
            query(f"growpage_kv_demand_p95{{{MODELS}}}", "p95, 15 min {{model_name}}"),
        ),
        lines(
            "Pages of a request",
            "The most pages that requests held at once.",
            "short",
            query(quantile(0.5, "growpage_request_pages", "model_name"), "p50 {{model_name}}"),
            query(quantile(0.95, "growpage_request_pages", "model_name"), "p95 {{model_name}}"),
        ),
    ]


def decisions() -> Panels:
    """What happens at capacity boundaries."""
    by = "reason, mode"
    legend = "{{reason}} ({{mode}})"
    panels = [
        stacked(
            "Compressions by reason",
            "A second. pool: want of memory; boundary: the policy's choice; the others are limits. "
            "In the mode observe: those that there would have been.",
            "cps",
            query(rate("growpage_compressions_total", by), legend),
        ),
        stacked(
            "Growths by reason",
            "Capacity steps granted a second. spare: there was free memory; signal: attention "
            "became wider; cold: nothing was measured yet.",
            "cps",
            query(rate("growpage_growths_total", by), legend),
        ),
        stacked(
            "Growth refused by reason",
            "Capacity steps that were wanted and refused, a second. pool: add memory or replicas; "
            "the others are limits that somebody has set.",
            "cps",
            query(rate("growpage_growth_refused_total", by), legend),
        ),
        lines(
            "Planned and carried out",
            "Compressions a second that schedulers planned and that workers confirmed. The lines "
            "lie on each other; if the second is flat, the plugin is inactive in the workers.",
            "cps",
            query(rate("growpage_compressions_total", BY_ENGINE, ENFORCED), f"planned, {ENGINE}"),
            query(
                rate("growpage_compactions_confirmed_total", BY_ENGINE), f"carried out, {ENGINE}"
            ),
        ),
    ]
    return [panel.span(6) for panel in panels]


def quality() -> Panels:
    """What compression costs the answers."""
    over = "model:growpage_predicted_loss_over_slo:ratio_rate"
    return [
        map_of(
            "Predicted loss of compressions",
            "Attention mass that compressions were predicted to lose.",
            "percentunit",
            buckets(rate("growpage_predicted_loss_bucket", "le", ENFORCED)),
        ),
        limited(
            lines(
                "Predicted loss, quantiles",
                "Of the compressions that were carried out, and of those that were only observed. "
                "The line is the bound of the objective.",
                "percentunit",
                *(
                    query(
                        quantile(share, "growpage_predicted_loss", "mode"),
                        f"p{100 * share:g} ({{{{mode}}}})",
                    )
                    for share in (0.5, 0.95, 0.99)
                ),
            ),
            0.1,
        ),
        limited(
            lines(
                "Compressions over the loss objective",
                "Share that was predicted to lose more than 10% of the attention mass. Over the "
                "line in the last hour and the last 5 minutes: route to a smaller model.",
                "percentunit",
                *(
                    query(f"{over}{window}{{{MODELS}}}", f"{window} {{{{model_name}}}}")
                    for window in ("5m", "30m", "1h", "6h")
                ),
            ),
            0.144,
        ),
    ]


def time_spent() -> Panels:
    """What compression costs in time, and what preemptions cost."""
    return [
        limited(
            lines(
                "Allocation latency",
                "From full pages to a page that can be written, new or emptied by a compression.",
                "s",
                query(
                    quantile(0.5, "growpage_page_allocation_latency_seconds", BY_ENGINE),
                    f"p50 {ENGINE}",
                ),
                query(
                    quantile(0.99, "growpage_page_allocation_latency_seconds", BY_ENGINE),
                    f"p99 {ENGINE}",
                ),
            ),
            0.015,
        ),
        stacked(
            "Time of decisions by phase",
            "Seconds a second, of all engines chosen: what share of the time goes into it.",
            "percentunit",
            query(rate("growpage_decision_seconds_sum", "phase"), "{{phase}}"),
        ),
        lines(
            "One decision by phase, p99",
            "On a device that runs asynchronously the time to launch.",
            "s",
            query(quantile(0.99, "growpage_decision_seconds", "phase"), "{{phase}}"),
        ).scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10)),
        lines(
            "Preemptions",
            "A second. A request that may be compressed is not preempted for want of a page.",
            "cps",
            query(rate("vllm:num_preemptions_total", BY_ENGINE), ENGINE),
        ),
        lines(
            "Tokens computed again",
            "After preemptions, prefix-cache hits deducted, beside the tokens that are generated.",
            "short",
            query(rate("growpage_recomputed_tokens_total", "model_name"), "again, {{model_name}}"),
            query(rate("vllm:generation_tokens_total", "model_name"), "generated, {{model_name}}"),
        ),
        lines(
            "What users see",
            "Time to the first token, and between tokens.",
            "s",
            query(
                quantile(0.95, "vllm:time_to_first_token_seconds", "model_name"),
                "first token, p95 {{model_name}}",
            ),
            query(
                quantile(0.99, "vllm:inter_token_latency_seconds", "model_name"),
                "between tokens, p99 {{model_name}}",
            ),
        ),
    ]


def attention() -> Panels:
    """The summaries that the policy ``entropy`` decides by."""
    return [
        map_of(
            "Entropy of the last 512 steps (LTS)",
            "Mean attention entropy in nats when demand was measured; above 2.1 the policy entropy "
            "grows. With that policy, or track_entropy.",
            "short",
            buckets(rate("growpage_lts_entropy_bucket", "le")),
        ),
        map_of(
            "Density of the last 32 steps (STS)",
            "Share of steps in the fullest bin of entropies; above 70% the policy entropy "
            "compresses. With that policy, or track_entropy.",
            "percentunit",
            buckets(rate("growpage_sts_density_bucket", "le")),
        ),
        lines(
            "Prompts longer than the pool",
            "Requests refused a second, since their prompt alone is longer than the whole pool.",
            "cps",
            query(rate("growpage_refused_prompts_total", BY_ENGINE), ENGINE),
        ),
    ]


# ---- the dashboard ---------------------------------------------------------------------------


def variable(name: str, label: str, values: str) -> dashboards.QueryVariable:
    """A choice of several label values; all of them at first, series without the label too."""
    return (
        dashboards.QueryVariable(name)
        .label(label)
        .query(values)
        .datasource(SOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def dashboard() -> model.Dashboard:
    """The whole dashboard."""
    builder = (
        dashboards.Dashboard("GrowPage")
        .uid("growpage")
        .description("KV memory of vLLM servers with growpage: pool, decisions, quality and cost.")
        .tags(["growpage", "vllm"])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(
            dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(
            variable("namespace", "Namespace", "label_values(growpage_mode_info, namespace)")
        )
        .with_variable(
            variable(
                "model",
                "Model",
                'label_values(growpage_mode_info{namespace=~"$namespace"}, model_name)',
            )
        )
        .with_variable(
            variable(
                "instance", "Server", f"label_values(growpage_mode_info{{{MODELS}}}, instance)"
            )
        )
        .with_variable(
            variable(
                "engine",
                "Engine",
                f'label_values(growpage_mode_info{{{MODELS},instance=~"$instance"}}, engine)',
            )
        )
    )
    rows = {
        "Now": now(),
        "Memory": memory(),
        "Requests": requests(),
        "Decisions": decisions(),
        "Quality": quality(),
        "Time": time_spent(),
        "Attention": attention(),
    }
    for title, panels in rows.items():
        builder.with_row(dashboards.Row(title))
        for panel in panels:
            builder.with_panel(panel)
    built = builder.build()
    for identity, placed in enumerate(built.panels or [], start=1):
        placed.id_val = identity
        if isinstance(placed, model.Panel):
            for letter, target in zip(ascii_uppercase, placed.targets or [], strict=False):
                assert isinstance(target, PrometheusQuery)
                target.ref_id = letter
    return built


def text() -> str:
    """The dashboard as the file holds it."""
    return json.dumps(dashboard(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
