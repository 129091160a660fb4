"""Acceptance under every course of events of small worlds, and under many seeds of large ones."""

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import pytest

from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenarios.ingest import IngestAccept
from holdfast.telemetry.accept.collector import Collector, Outcome, Put

SOAK = pytest.mark.soak
ONE_OF_EACH = Limits(crashes=1, lost_responses=1)


class InOrder(Collector):
    """Bytes, then the reference: they are different objects, so which of the two lands first makes no difference, and
    there are fewer courses of events."""

    async def _both(self, blob: Put, reference: Put) -> tuple[Outcome, Outcome]:
        [stored] = await asyncio.gather(blob(), return_exceptions=True)
        [referred] = await asyncio.gather(reference(), return_exceptions=True)
        return stored, referred


@dataclass(frozen=True, kw_only=True)
class Accept(IngestAccept):
    collector: ClassVar[type[Collector]] = InOrder


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(Accept(again=1), ONE_OF_EACH, 200, id="equal bytes"),
        pytest.param(Accept(again=1), Limits(0, 0, timeouts=1), 100, id="equal bytes, late"),
        pytest.param(Accept(), Limits(0, 0, duplicates=1), 100, id="equal bytes, doubled"),
        pytest.param(Accept(), Limits(0, 1, duplicates=1), 1_000, id="equal bytes, doubled and lost", marks=SOAK),
        pytest.param(Accept(), Limits(0, 0, contended=1), 50, id="equal bytes under 409"),
        pytest.param(Accept(variants=2, again=1), ONE_OF_EACH, 300, id="different bytes"),
        pytest.param(Accept(variants=2), Limits(0, 0, timeouts=1), 200, id="different bytes, late", marks=SOAK),
        pytest.param(Accept(collectors=1, keepers=1, again=1), ONE_OF_EACH, 200, id="a keeper"),
        pytest.param(Accept(collectors=1, keepers=1), Limits(0, 0, timeouts=1), 50, id="a keeper, late"),
        pytest.param(Accept(collectors=1, keepers=1), Limits(0, 1, duplicates=1), 50, id="a keeper, doubled"),
        pytest.param(
            Accept(variants=2, keepers=1, resolved=True), Limits(0, 0), 200, id="a keeper, resolved", marks=SOAK
        ),
    ],
)
def test_no_schedule_breaks_acceptance(scenario: Accept, limits: Limits, at_least: int) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least
