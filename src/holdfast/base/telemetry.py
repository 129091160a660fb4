"""Spans through the OpenTelemetry API, and loggers: both silent until the application installs something."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span

logging.getLogger("holdfast").addHandler(logging.NullHandler())

_tracer = trace.get_tracer("holdfast")


def logger(room: str) -> logging.Logger:
    return logging.getLogger(f"holdfast.{room}")


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[Span]:
    """A span whose attributes are named ``holdfast.<name>``; an exception marks it failed and passes through."""
    with _tracer.start_as_current_span(
        name, attributes={f"holdfast.{key}": value for key, value in attributes.items()}
    ) as current:
        yield current
