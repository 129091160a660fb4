"""Spans through the OpenTelemetry API, and loggers: both produce nothing until the application configures them."""

import logging
from contextlib import AbstractContextManager, nullcontext

from opentelemetry import trace
from opentelemetry.trace import Span

logging.getLogger("holdfast").addHandler(logging.NullHandler())

_tracer = trace.get_tracer("holdfast")
_SILENT = nullcontext(trace.INVALID_SPAN)


def logger(package: str) -> logging.Logger:
    return logging.getLogger(f"holdfast.{package}")


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[Span]:
    """A span with attributes named ``holdfast.<name>``; an exception marks it failed and is re-raised."""
    if isinstance(_tracer, trace.ProxyTracer) and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _SILENT  # tracing is not configured: a span without a recorder costs as much as a small request
    return _tracer.start_as_current_span(
        name, attributes={f"holdfast.{key}": value for key, value in attributes.items()}
    )
