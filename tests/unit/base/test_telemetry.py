"""Spans go to the OpenTelemetry API: nothing without an SDK, everything to the provider that is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from holdfast.base import telemetry


class Kept(NonRecordingSpan):
    """A span that remembers what was said to it."""

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        super().__init__(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))
        self.name = name
        self.attributes = dict(attributes)
        self.errors: list[BaseException] = []

    def is_recording(self) -> bool:
        return True

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value


class KeepingTracer(trace.Tracer):
    def __init__(self) -> None:
        self.spans: list[Kept] = []

    def start_span(self, name: str, *args: Any, attributes: Any = None, **kwargs: Any) -> Kept:
        self.spans.append(Kept(name, attributes or {}))
        return self.spans[-1]

    @contextmanager
    def start_as_current_span(self, name: str, *args: Any, attributes: Any = None, **kwargs: Any) -> Iterator[Kept]:  # type: ignore[override]  # the API's own decorator is private
        span = self.start_span(name, attributes=attributes)
        with trace.use_span(span):
            try:
                yield span
            except BaseException as error:
                span.errors.append(error)
                raise


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> KeepingTracer:
    keeping = KeepingTracer()
    monkeypatch.setattr(telemetry, "_tracer", keeping)
    return keeping


def test_without_an_sdk_a_span_is_nothing() -> None:
    with telemetry.span("objects.put", key="a") as span:
        assert not span.is_recording()
        assert not span.get_span_context().is_valid


def test_attributes_are_named_for_the_project_and_the_span_is_current_inside(tracer: KeepingTracer) -> None:
    with telemetry.span("objects.put", key="a/b", size=3, cached=False) as span:
        assert trace.get_current_span() is span
        span.set_attribute("holdfast.outcome", "written")
    assert trace.get_current_span() is not span
    with pytest.raises(KeyError), telemetry.span("fails"):
        raise KeyError
    kept, failed = tracer.spans
    assert [type(error) for error in failed.errors] == [KeyError]
    answer = {"holdfast.key": "a/b", "holdfast.size": 3, "holdfast.cached": False, "holdfast.outcome": "written"}
    assert (kept.name, kept.attributes) == ("objects.put", answer)
