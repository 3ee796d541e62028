"""``growpage autoscale``: decide how many replicas each served model needs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from growpage.budget.errors import ConfigError

if TYPE_CHECKING:
    from growpage.fleet.config import AutoscalerSettings
    from growpage.fleet.controller import Record, Round
    from growpage.fleet.telemetry import FleetMetrics

HOLD = 3
"""For want of data that can be trusted, some model was not decided for."""
UNREACHABLE = 4
"""Prometheus could not be asked."""
NOT_SCALED = 5
"""A target was to be scaled and was not."""


class Output(StrEnum):
    """How decisions are printed."""

    TEXT = "text"
    JSON = "json"


autoscale_app = typer.Typer(
    help="Decide how many replicas each served model needs; act if told to.",
    invoke_without_command=True,
    no_args_is_help=False,
)


@autoscale_app.callback(
    epilog="With --once it exits with 0 if every model was decided for, 2 on a wrong setting, 3 if "
    "it holds for want of data that can be trusted, 4 if Prometheus cannot be reached, 5 if a "
    "target could not be scaled."
)
def autoscale(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The configuration, a YAML file. See docs/autoscaler.md.")
    ] = None,
    prometheus_url: Annotated[
        str | None,
        typer.Option(help="Prometheus' address. Without --config, every model that it knows."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Decide once and exit.")] = False,
    act: Annotated[
        bool,
        typer.Option("--act", help="Scale the targets in Kubernetes. Default: only say so."),
    ] = False,
    output: Annotated[
        Output, typer.Option(help="Text, or JSON with one object a line.")
    ] = Output.TEXT,
) -> None:
    """Read Prometheus, decide SCALE_OUT, SCALE_IN or NO_ACTION for each served model, and say why.

    It never guesses: on data that are old, partial, absent or wrong it holds, and says so.
    """
    if context.invoked_subcommand is not None:
        return
    settings = _settings(config, prometheus_url, act)
    try:
        from growpage.fleet import wiring
        from growpage.fleet.telemetry import FleetMetrics
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    _log_to_stderr()
    digest = settings.digest()
    metrics = FleetMetrics()

    def show(record: Record) -> None:
        from growpage.fleet.audit import as_line, as_text

        line = as_text(record) if output is Output.TEXT else as_line(record, digest)
        typer.echo(line)

    sinks = [show, metrics.record]
    if once:
        with wiring.autoscaler(settings, sinks) as controller:
            raise typer.Exit(_status(controller.run_once()))
    _run_until_stopped(settings, metrics, sinks)


def _run_until_stopped(
    settings: AutoscalerSettings, metrics: FleetMetrics, sinks: Sequence[Callable[[Record], None]]
) -> None:
    import structlog

    from growpage.fleet import service, wiring
    from growpage.fleet.telemetry import Health, TelemetryServer

    if settings.kubernetes is None:
        structlog.get_logger(__name__).warning(
            "replicas are what Prometheus scrapes: set `kubernetes: {}` in the configuration "
            "before an HPA or KEDA follows growpage_desired_replicas"
        )
    stop = _stop_on_signal()
    health = Health(service.patience(settings.interval_seconds))
    with wiring.autoscaler(settings, [*sinks, service.StateLog()]) as controller:
        server = TelemetryServer(settings.listen_host, settings.listen_port, metrics, health)
        try:
            service.run(
                controller,
                interval=settings.interval_seconds,
                stop=stop,
                metrics=metrics,
                health=health,
            )
        finally:
            server.close()


def _settings(config: Path | None, url: str | None, act: bool) -> AutoscalerSettings:
    try:
        from growpage.fleet.config import AutoscalerSettings
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    overrides: dict[str, Any] = {}
    if url is not None:
        overrides["prometheus"] = {"url": url}
    if act:
        overrides["kubernetes"] = {"act": True}
    if config is not None:
        return AutoscalerSettings.from_file(config, overrides)
    if act:
        raise ConfigError("--act needs --config, which names the target of each model")
    if url is None:
        raise ConfigError("say where Prometheus is: --prometheus-url, or --config with a file")
    return AutoscalerSettings.of(overrides)


def _status(done: Round) -> int:
    """The exit status of one round, the gravest first."""
    if done.unreachable:
        if not done.records:
            typer.echo(f"growpage: hold: {done.unreachable}", err=True)
        return UNREACHABLE
    if not done.records:
        typer.echo(
            "growpage: hold: Prometheus has no KV usage of any model "
            "(vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc): does it scrape vLLM?",
            err=True,
        )
    if done.failed:
        return NOT_SCALED
    return HOLD if done.holds else 0


def _stop_on_signal() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _log_to_stderr() -> None:
    """Decisions go to standard output, everything else does not."""
    import structlog

    renderer: Any = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _missing(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"growpage autoscale needs {error.name}: pip install 'growpage[fleet]'")


@autoscale_app.command("simulate")
def simulate(
    workload: Annotated[
        str,
        typer.Option(help="diurnal, spike, outage (of the metrics) or rolling (an update)."),
    ] = "diurnal",
    recorded: Annotated[
        Path | None,
        typer.Option(
            help="Requests a second over time instead: a CSV of seconds and rate, or the JSON of "
            "Prometheus' query_range."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A configuration; the policy of its first model is simulated."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for simulation.json and simulation.png.")
    ] = Path("autoscale-simulation"),
    peak: Annotated[
        float, typer.Option(min=0.01, max=1000, help="Requests a second at the peak.")
    ] = 12.0,
    cold_start: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds until a new replica serves.")
    ] = 180.0,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Requests that a replica runs at once.")
    ] = 64,
    kv_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that a replica's KV cache holds.")
    ] = 32_768,
    seed: Annotated[int, typer.Option(help="Of the random requests.")] = 0,
) -> None:
    """Show what a policy would do with a load, beside a plain HPA and the simple rule.

    The load runs through the decision code as it is, on modelled replicas that queue, serve and
    take a while to start. Prints a table; writes all figures and, with matplotlib, a picture.
    """
    try:
        from growpage.fleet.config import Policy
        from growpage.fleet.simulate.report import table, write_json
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    from growpage.fleet.simulate import workloads
    from growpage.fleet.simulate.replicas import ReplicaModel
    from growpage.fleet.simulate.run import simulate as run_all

    policy = Policy()
    if config is not None:
        settings = _settings(config, None, act=False)
        policy = settings.models[0].policy if settings.models else settings.policy
    if recorded is not None:
        load = workloads.recorded(recorded)
    elif workload in workloads.GENERATED:
        load = workloads.GENERATED[workload](peak)
    else:
        known = ", ".join(workloads.GENERATED)
        raise ConfigError(f"--workload is {workload!r}, but must be one of {known}")
    model = ReplicaModel(slots=max_num_seqs, kv_tokens=kv_tokens, cold_start=cold_start)
    results = run_all(load, policy, model, seed=seed)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "simulation.json", load, policy, model, results, seed)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {out}: {error.strerror}") from None
    from rich.console import Console

    Console().print(table(load, results))
    typer.echo(f"all figures: {out / 'simulation.json'}")
    try:
        from growpage.fleet.simulate.figures import draw
    except ModuleNotFoundError:
        typer.echo("no picture without matplotlib: pip install 'growpage[demo]'")
        return
    draw(load, results, out / "simulation.png")
    typer.echo(f"picture: {out / 'simulation.png'}")
