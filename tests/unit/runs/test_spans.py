"""Runs, sessions and steps are spans, nested, with the ids that find them in the journal."""

import pytest

from holdfast import runs
from holdfast.base import telemetry
from tests.unit.base.test_telemetry import KeepingTracer
from tests.unit.runs.desk import Desk


async def test_runs_sessions_and_steps_are_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = KeepingTracer()
    monkeypatch.setattr(telemetry, "_tracer", tracer)

    def fail() -> None:
        raise ValueError("no")

    @runs.workflow
    async def work(ctx: runs.Context) -> None:
        await ctx.step("fine", lambda: 1)
        await ctx.step("bad", fail)

    await work.start(Desk().store(), run_id="r")
    assert [span.name for span in tracer.spans] == [
        "holdfast.run",
        "holdfast.session",
        "holdfast.step",
        "holdfast.step",
    ]
    run, session, fine, bad = tracer.spans
    assert run.attributes == {"holdfast.run_id": "r", "holdfast.workflow": "work"}
    assert session.attributes == {"holdfast.run_id": "r", "holdfast.session": 1}
    assert fine.attributes["holdfast.step_id"] == "fine"
    assert (fine.errors, len(bad.errors)) == ([], 1)
