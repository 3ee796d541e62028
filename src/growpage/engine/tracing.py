"""What a request held, as attributes of vLLM's own request spans.

The engine knows it, and the server makes the span. So it travels with the request's last output, in
the ``tracestate`` of its trace headers, which W3C keeps for such entries of vendors.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

VENDOR = "growpage"
PREFIX = "growpage."

Figures = Mapping[str, int | str]
"""Attributes without their prefix, such as ``peak_pages``; no value holds ``,``, ``=`` or ``;``."""

_propagator = TraceContextTextMapPropagator()


def with_figures(
    headers: Mapping[str, str] | None, figures: Figures, arrived_s: float
) -> dict[str, str]:
    """Trace headers that carry ``figures`` too.

    A request that came without a trace gets a span of its own, ``growpage.request``, whose child
    vLLM's span becomes, so that there is a trace to carry them.

    Args:
        headers: of the request.
        figures: what it held.
        arrived_s: when it arrived, in Unix seconds.
    """
    carried = dict(headers or {})
    parent = trace.get_current_span(_propagator.extract(carried)).get_span_context()
    if not parent.is_valid:
        span = trace.get_tracer(__name__).start_span(
            "growpage.request",
            context=Context(),
            kind=SpanKind.INTERNAL,
            start_time=int(arrived_s * 1e9),
            attributes={PREFIX + name: value for name, value in figures.items()},
        )
        _propagator.inject(carried, trace.set_span_in_context(span, Context()))
        span.end()
        if "traceparent" not in carried:
            return carried  # nobody traces in this process
    packed = ";".join(f"{name}:{value}" for name, value in figures.items())
    state = TraceState.from_header([carried.get("tracestate", "")]).delete(VENDOR)
    carried["tracestate"] = state.add(VENDOR, packed).to_header()
    return carried


class FigureReader(SpanProcessor):
    """Gives each span the figures that its trace state carries."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Called by OpenTelemetry as a span is started, while it can still be added to."""
        packed = span.get_span_context().trace_state.get(VENDOR)
        for item in packed.split(";") if packed else ():
            name, _, value = item.partition(":")
            span.set_attribute(PREFIX + name, int(value) if value.isdecimal() else value)


def read_figures_into_spans() -> None:
    """Let vLLM's tracer in this process, which must be set up, read figures."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.add_span_processor(FigureReader())
