"""The laws can fail: every faulty store is refused, and the laws that it breaks are the ones named."""

import random

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.conformance.laws import LAWS, Bench, Effort, Finding, judge
from holdfast.objects.retry import RetryPolicy
from tests.fakes.stores import FAULTY, RACES, Factory, racing

EFFORT = Effort(races=6, rounds=6, keys=50, large_bytes=64 * 1024)
IMPATIENT = RetryPolicy(attempts=3, base_ms=1, max_ms=1, deadline_ms=1_000)


async def findings(factory: Factory, *names: str, seed: int = 0) -> dict[str, Finding]:
    bench = Bench(
        [factory() for _ in range(EFFORT.races)],
        prefix="laws/",
        ambient=Ambient(SystemClock(), random.Random(seed)),
        effort=EFFORT,
        retry=IMPATIENT,
    )
    chosen = [law for law in LAWS if not names or law.name in names]
    return {finding.law.name: finding async for finding in judge(bench, chosen)}


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_faulty_store_breaks_exactly_its_laws(fault: str) -> None:
    new, breaks = FAULTY[fault]
    found = await findings(new())
    assert {name for name, finding in found.items() if not finding.kept} == breaks


@pytest.mark.parametrize("seed", range(10))
async def test_a_racing_store_is_found_with_every_seed(seed: int) -> None:
    found = await findings(racing(seed), *RACES)
    assert not found["create-exclusive"].kept
    assert not found["if-match-wins-once"].kept
    assert "racing writers were answered that they won" in found["create-exclusive"].figure


@pytest.mark.parametrize(
    ("fault", "law", "evidence"),
    [
        ("ignores conditions", "stale-write-refused", "a write over a stale version was answered as done"),
        ("ignores conditions", "if-match-needs-object", "if-match on a missing key was answered Written"),
        ("lists stale", "listing-complete", "50 objects written, 47 listed (3 missing)"),
        ("lists stale", "listing-fresh", "fresh/0000 was acknowledged and not listed"),
        ("sends no etag", "conditional-get", "two different bodies have one version"),
        ("always answers 412", "create-exclusive", "the store refuses a condition that holds"),
        ("forgets deletes", "round-trip", "still readable after its delete was answered"),
    ],
)
async def test_the_evidence_of_a_violation(fault: str, law: str, evidence: str) -> None:
    new, _ = FAULTY[fault]
    assert evidence in (await findings(new(), law))[law].figure
