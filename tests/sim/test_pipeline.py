"""Drivers of the pipeline under trouble: nothing is lost, nothing counts twice.

That each of their rules is needed is shown by ``tests/unit/pipeline/test_rules.py``, schedule by schedule, with the
same checkers.
"""

import pytest

from holdfast.sim.run import simulate
from holdfast.sim.scenarios.pipeline import PipelineDerive


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_every_record_counts_once_whatever_goes_wrong() -> None:
    runs = [simulate(PipelineDerive, seed) for seed in range(24)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    met = sum((run.tally for run in runs), start=type(runs[0].tally)())
    assert {"crashes", "pauses", "lost response", "late", "duplicate", "contended", "unavailable"} <= met.keys()
