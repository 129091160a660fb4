"""Acceptance under every course of events of small worlds, and under many seeds of large ones."""

import pytest

from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenarios.ingest import IngestAccept

ONE_OF_EACH = Limits(crashes=1, lost_responses=1)


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(IngestAccept(again=1), ONE_OF_EACH, 200, id="equal bytes"),
        pytest.param(IngestAccept(again=1), Limits(0, 0, timeouts=1), 100, id="equal bytes, late"),
        pytest.param(IngestAccept(), Limits(0, 1, duplicates=1), 100, id="equal bytes, doubled"),
        pytest.param(IngestAccept(), Limits(0, 0, contended=1), 50, id="equal bytes under 409"),
        pytest.param(IngestAccept(variants=2, again=1), ONE_OF_EACH, 300, id="different bytes"),
        pytest.param(IngestAccept(variants=2), Limits(0, 0, timeouts=1), 200, id="different bytes, late"),
        pytest.param(IngestAccept(collectors=1, keepers=1, again=1), ONE_OF_EACH, 200, id="a keeper"),
        pytest.param(IngestAccept(collectors=1, keepers=1), Limits(0, 0, timeouts=1), 50, id="a keeper, late"),
        pytest.param(IngestAccept(collectors=1, keepers=1), Limits(0, 1, duplicates=1), 50, id="a keeper, doubled"),
        pytest.param(
            IngestAccept(variants=2, keepers=1, resolved=True), Limits(0, 0), 200, id="a keeper of resolved conflicts"
        ),
    ],
)
def test_no_course_of_events_breaks_acceptance(scenario: IngestAccept, limits: Limits, at_least: int) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least
