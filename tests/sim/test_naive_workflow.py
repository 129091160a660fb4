"""The rules of replay are needed: without them a workflow that crashes takes another path, or never ends."""

import pytest

from holdfast.runs.engine.context import Context
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.runs import RunsWorkflow


def test_a_note_that_is_written_after_the_steps_that_used_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "_release", lambda *_: None)
    assert any(simulate(RunsWorkflow, seed).violations for seed in range(1, 60))
