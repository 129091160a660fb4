"""Spans use the OpenTelemetry API: they do nothing without an SDK, and have our attributes with one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from holdfast.base import telemetry


class RecordedSpan(NonRecordingSpan):
    error: BaseException | None = None

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        super().__init__(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))
        self.name, self.attributes = name, attributes

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value


class RecordingTracer(trace.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # the API's own decorator is private
        self, name: str, *args: Any, attributes: Any = None, **kwargs: Any
    ) -> Iterator[RecordedSpan]:
        span = RecordedSpan(name, dict(attributes))
        self.spans.append(span)
        try:
            with trace.use_span(span):
                yield span
        except BaseException as error:
            span.error = error
            raise


def test_without_an_sdk_a_span_does_nothing() -> None:
    with telemetry.span("objects.put", key="a") as span:
        assert not span.is_recording()
        assert not span.get_span_context().is_valid


def test_a_span_is_current_inside_and_its_attributes_are_named_for_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = RecordingTracer()
    monkeypatch.setattr(telemetry, "_tracer", tracer)
    with telemetry.span("objects.put", key="a/b", size=3, cached=False) as span:
        assert trace.get_current_span() is span
        span.set_attribute("holdfast.outcome", "written")
    assert trace.get_current_span() is not span
    with pytest.raises(KeyError), telemetry.span("fails"):
        raise KeyError
    kept, failed = tracer.spans
    attributes = {"holdfast.key": "a/b", "holdfast.size": 3, "holdfast.cached": False, "holdfast.outcome": "written"}
    assert (kept.name, kept.attributes) == ("objects.put", attributes)
    assert isinstance(failed.error, KeyError)
